#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "analysis/rules/rules.h"
#include "analysis/rules/scalar_reads.h"

namespace telens::analysis {
namespace {

constexpr std::string_view kLostUpdates = "lost_updates%";
constexpr std::string_view kLostDecay = "lost_decay%";

// Percent. An update is lost if it is smaller than half a unit in the last place of its weight.
// With nearest rounding, a share p of lost updates means that 1 - p of the elements change, so
// above one half most of the model does not train. The exact limit matters little. For weights from
// a normal distribution with standard deviation s and updates of size u = lr, BF16 (half a unit is
// 2^-9 to 2^-8 of the weight) loses 5 % of the updates at s = 180 u and already half at s = 540 u.
constexpr double kMinLostShare = 50;
constexpr std::size_t kMinLostReads = 2;
// Percent of the weight decay. BF16 loses all of it below a rate times decay of 2^-9, and nothing
// with stochastic rounding; a read has a standard error of at most 18 %.
constexpr double kMinLostDecay = 90;

// The share of lost updates in the whole run, each read weighted by its learning rate. Updates that
// are lost while the rate warms up or after it has decayed would hardly have changed the model.
struct LostShare {
  double percent = 0;
  std::int64_t first = 0;  // first read of at least the minimum
  std::int64_t last = 0;   // last such read
  double at_first = 0;
};

std::optional<LostShare> compute_lost_share(const std::vector<Point>& reads, const Scalars* rates,
                                            double min_percent) {
  double lost = 0;
  double weights = 0;
  std::size_t finite = 0;
  std::optional<LostShare> share;
  for (const auto& [iteration, percent] : reads) {
    if (!std::isfinite(percent)) continue;  // of NaN weights, reported by nonfinite
    ++finite;
    const double weight = rates != nullptr ? value_at(*rates, iteration).value_or(0) : 1;
    lost += weight * percent;
    weights += weight;
    if (percent < min_percent) continue;
    if (!share) share = LostShare{.first = iteration, .at_first = percent};
    share->last = iteration;
  }
  if (!share || finite < kMinLostReads || !(weights > 0) || lost / weights < min_percent) {
    return std::nullopt;
  }
  share->percent = lost / weights;
  return share;
}

// The layer with the largest share, and the number of layers that lose at least half.
struct AffectedLayers {
  const Series* worst = nullptr;
  double percent = 0;
  std::size_t affected = 0;
};

AffectedLayers find_affected_layers(const Facts& facts, std::string_view statistic, int rank,
                                    const Scalars* rates, double min_percent) {
  AffectedLayers layers;
  for (const Series* series : facts.with(statistic)) {
    if (series->place.rank != rank) continue;
    const auto share = compute_lost_share(series->points, rates, min_percent);
    if (!share) continue;
    ++layers.affected;
    if (layers.worst == nullptr || share->percent > layers.percent) {
      layers.worst = series;
      layers.percent = share->percent;
    }
  }
  return layers;
}

Finding make_lost_finding(const Scalars& lost, const Scalars* rates, const LostShare& share,
                          const AffectedLayers& layers, std::string summary) {
  Finding finding{.cause = "lost_updates",
                  .place = layers.worst != nullptr ? layers.worst->place : Place{.rank = lost.rank},
                  .first = share.first,
                  .last = share.last,
                  .confidence = kProven,
                  .summary = std::move(summary),
                  .evidence = {{lost.name, {.rank = lost.rank}, share.first, share.at_first, ""}}};
  if (layers.affected > 1) finding.summary += fmt::format(", in {} layers", layers.affected);
  if (layers.worst != nullptr) {
    const Point& read = layers.worst->points.front();
    finding.evidence.push_back({lost.name, layers.worst->place, read.iteration, read.value, ""});
  }
  const auto rate = rates != nullptr ? value_at(*rates, share.first) : std::nullopt;
  if (rate) finding.evidence.push_back({rates->name, {}, share.first, *rate, ""});
  return finding;
}

std::optional<Finding> find_lost(const Facts& facts, const Scalars& lost) {
  const Scalars* rates = scalar_beside(facts, lost, "lr");
  const auto share = compute_lost_share(lost.points, rates, kMinLostShare);
  if (!share) return std::nullopt;
  return make_lost_finding(
      lost, rates, *share,
      find_affected_layers(facts, kLostUpdates, lost.rank, rates, kMinLostShare),
      fmt::format("{:.3g} % of the optimizer's updates have no effect, because they are smaller "
                  "than half a unit in the last place of the weights",
                  share->percent));
}

std::optional<Finding> find_lost_decay(const Facts& facts, const Scalars& lost) {
  const Scalars* rates = scalar_beside(facts, lost, "lr");
  const auto share = compute_lost_share(lost.points, rates, kMinLostDecay);
  if (!share) return std::nullopt;
  Finding finding = make_lost_finding(
      lost, rates, *share, find_affected_layers(facts, kLostDecay, lost.rank, rates, kMinLostDecay),
      fmt::format("{:.3g} % of the weight decay has no effect: it is smaller than half a unit in "
                  "the last place of the weights and is rounded separately from the update",
                  share->percent));
  finding.next_step =
      "apply the decay to the FP32 value before it is rounded, or keep FP32 copies of the weights "
      "in the optimizer";
  return finding;
}

std::vector<Finding> find_lost_updates(const Facts& facts) {
  for (const Scalars* lost : scalars_named(facts, kLostUpdates)) {
    if (auto found = find_lost(facts, *lost)) return {std::move(*found)};
  }
  for (const Scalars* lost : scalars_named(facts, kLostDecay)) {
    if (auto found = find_lost_decay(facts, *lost)) return {std::move(*found)};
  }
  return {};
}

}  // namespace

Rule lost_updates() {
  return {
      .cause = "lost_updates",
      .title = "updates lost to the rounding of the weights",
      .doc =
          "At least half of the updates that an optimizer makes do not change their weight, "
          "weighted by the learning rate of each step. An update is lost if it is smaller than "
          "half a unit in the last place of the weight, as with a small learning rate in BF16. "
          "Losses during warm-up or after the rate has decayed count little. Also reported: at "
          "least 90 % of the weight decay of 16-bit weights has no effect, measured on elements "
          "without another update, such as embeddings of unused tokens. Visible from the first "
          "step on.",
      .stage = Stage::update,
      .required = {kLostUpdates},
      .optional = {kLostDecay},
      .needs_optimizer = true,
      .recorded_by = "telens.watch",
      .alternatives =
          "Weights that were converted to low precision on purpose for a short fine-tuning; "
          "stochastic rounding, which changes fewer elements by more and loses nothing on average; "
          "a decay that the optimizer applies only to some elements.",
      .next_step =
          "keep FP32 copies of the weights in the optimizer (FP32 parameters under autocast), use "
          "an optimizer with stochastic rounding, or a larger learning rate",
      .find = find_lost_updates};
}

}  // namespace telens::analysis
