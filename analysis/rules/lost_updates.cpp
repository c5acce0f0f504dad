#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "analysis/rules/rules.h"
#include "analysis/rules/scalar_reads.h"

namespace telens::analysis {
namespace {

constexpr std::string_view kLostUpdates = "lost_updates%";

// Percent. An update is lost if it is smaller than half a unit in the last place of its weight.
// With nearest rounding, a share p of lost updates means that 1 - p of the elements change, so
// above one half most of the model does not train. The exact limit matters little. For weights from
// a normal distribution with standard deviation s and updates of size u = lr, BF16 (half a unit is
// 2^-9 to 2^-8 of the weight) loses 5 % of the updates at s = 180 u and already half at s = 540 u.
constexpr double kMinLostShare = 50;
constexpr std::size_t kMinLostReads = 2;

// The share of lost updates in the whole run, each read weighted by its learning rate. Updates that
// are lost while the rate warms up or after it has decayed would hardly have changed the model.
struct LostShare {
  double percent = 0;
  std::int64_t first = 0;  // first read in which at least half was lost
  std::int64_t last = 0;   // last such read
  double at_first = 0;
};

std::optional<LostShare> compute_lost_share(const std::vector<Point>& reads, const Scalars* rates) {
  double lost = 0;
  double weights = 0;
  std::optional<LostShare> share;
  for (const auto& [iteration, percent] : reads) {
    const double weight = rates != nullptr ? value_at(*rates, iteration).value_or(0) : 1;
    lost += weight * percent;
    weights += weight;
    if (percent < kMinLostShare) continue;
    if (!share) share = LostShare{.first = iteration, .at_first = percent};
    share->last = iteration;
  }
  if (!share || reads.size() < kMinLostReads || !(weights > 0) || lost / weights < kMinLostShare) {
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

AffectedLayers find_affected_layers(const Facts& facts, int rank, const Scalars* rates) {
  AffectedLayers layers;
  for (const Series* series : facts.with(kLostUpdates)) {
    if (series->place.rank != rank) continue;
    const auto share = compute_lost_share(series->points, rates);
    if (!share) continue;
    ++layers.affected;
    if (layers.worst == nullptr || share->percent > layers.percent) {
      layers.worst = series;
      layers.percent = share->percent;
    }
  }
  return layers;
}

std::vector<Finding> find_lost_updates(const Facts& facts) {
  for (const Scalars* lost : scalars_named(facts, kLostUpdates)) {
    const Scalars* rates = scalar_beside(facts, *lost, "lr");
    const auto share = compute_lost_share(lost->points, rates);
    if (!share) continue;
    const AffectedLayers layers = find_affected_layers(facts, lost->rank, rates);
    Finding finding{
        .cause = "lost_updates",
        .place = layers.worst != nullptr ? layers.worst->place : Place{.rank = lost->rank},
        .first = share->first,
        .last = share->last,
        .confidence = kProven,
        .summary =
            fmt::format("{:.3g} % of the optimizer's updates have no effect, because they are "
                        "smaller than half a unit in the last place of the weights{}",
                        share->percent,
                        layers.affected > 1 ? fmt::format(", in {} layers", layers.affected) : ""),
        .evidence = {
            {std::string(kLostUpdates), {.rank = lost->rank}, share->first, share->at_first, ""}}};
    if (layers.worst != nullptr) {
      finding.evidence.push_back({std::string(kLostUpdates), layers.worst->place,
                                  layers.worst->points.front().iteration,
                                  layers.worst->points.front().value, ""});
    }
    const auto rate = rates != nullptr ? value_at(*rates, share->first) : std::nullopt;
    if (rate) finding.evidence.push_back({rates->name, {}, share->first, *rate, ""});
    return {std::move(finding)};
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
          "Losses during warm-up or after the rate has decayed count little. Visible from the "
          "first step on.",
      .stage = Stage::update,
      .required = {kLostUpdates},
      .needs_optimizer = true,
      .recorded_by = "telens.watch",
      .alternatives =
          "Weights that were converted to low precision on purpose for a short fine-tuning; "
          "stochastic rounding, which changes fewer elements by more and loses nothing on average.",
      .next_step =
          "keep FP32 copies of the weights in the optimizer (FP32 parameters under autocast), use "
          "an optimizer with stochastic rounding, or a larger learning rate",
      .find = find_lost_updates};
}

}  // namespace telens::analysis
