#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "analysis/baseline.h"
#include "analysis/findings.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

// Gradual growth: by a factor of 2^4 within 16 iterations, after a steady past.
constexpr RampOptions kActivationGrowth{.least_bits = 4};

// Returns true if the standard deviation grows by less than a third of the ramp, in bits: only the
// mean drifts, which drifting_mean reports.
bool is_only_mean_drift(const Facts& facts, const Place& place, const Shift& ramp) {
  const Series* deviation = facts.find(place, "std");
  if (deviation == nullptr) return false;
  const Point* before = deviation->before(ramp.first);
  const Point* after = deviation->before(ramp.last + 1);
  return before != nullptr && after != nullptr &&
         bits(after->value) - bits(before->value) < ramp.bits / 3;
}

// Returns true if the growth is normal for the start of the training, when small initial weights
// grow in all blocks: at least half of the layers of the same kind grow by at least half as many
// bits, or the tensor remains smaller than most others if its kind has one layer.
bool is_start_of_training(const Facts& facts, const std::vector<Series>& sizes,
                          const Series& growing, const Shift& ramp) {
  constexpr std::int64_t kStartIterations = 12;
  if (ramp.first > facts.first_iteration() + kStartIterations) return false;
  const std::string kind = facts.get_kind(growing.place.layer);
  std::size_t peers = 0;
  std::size_t similar = 0;
  std::vector<double> sizes_after;
  for (const Series& each : sizes) {
    if (each.place.rank != growing.place.rank || each.place.layer == growing.place.layer) continue;
    const Point* before = each.before(ramp.first);
    const Point* after = each.before(ramp.last + 1);
    if (before == nullptr || after == nullptr) continue;
    sizes_after.push_back(after->value);
    const bool is_peer =
        each.place.tensor == growing.place.tensor && facts.get_kind(each.place.layer) == kind;
    if (!is_peer) continue;
    ++peers;
    if (bits(after->value) - bits(before->value) >= ramp.bits / 2) ++similar;
  }
  if (peers > 0) return 2 * similar >= peers;
  return !sizes_after.empty() && ramp.value < median(std::move(sizes_after));
}

// Returns the tensor that starts to grow first. If several start within one iteration of each
// other, returns the first in training order.
std::optional<Finding> find_gradual_growth(const Facts& facts, const std::vector<Series>& sizes) {
  std::optional<Finding> found;
  for (const Series& series : sizes) {
    const auto ramp = first_ramp(series.points, 1, kActivationGrowth);
    if (!ramp || (found && found->first <= ramp->first + 1)) continue;
    if (is_only_mean_drift(facts, series.place, *ramp)) continue;
    if (is_start_of_training(facts, sizes, series, *ramp)) continue;
    found = Finding{
        .cause = "activation_jump",
        .place = series.place,
        .first = ramp->first,
        .last = ramp->last,
        .confidence = kProbable,
        .summary =
            fmt::format("the root mean square grows in each iteration, from {:.3g} to {:.3g}",
                        ramp->usual, ramp->value),
        .evidence = {{"root mean square", series.place, ramp->first - 1, ramp->usual, "usual"}},
        .gradual = true};
  }
  return found;
}

std::vector<Finding> find_activation_jump(const Facts& facts) {
  std::vector<Series> sizes = root_mean_squares(facts, TensorName::activation);
  std::ranges::move(root_mean_squares(facts, TensorName::output), std::back_inserter(sizes));
  std::ranges::stable_sort(sizes, {},
                           [](const Series& series) { return get_order_in_step(series.place); });
  std::vector<Finding> found;
  for (const auto& group : shifts_together(sizes, 1, kActivationShift)) {
    const PlaceShift& origin = group.front();
    if (crest_change(facts, origin.place, origin.shift) > kOfOutliers) continue;
    found.push_back({.cause = "activation_jump",
                     .place = origin.place,
                     .first = origin.shift.first,
                     .last = origin.shift.last,
                     .confidence = kProbable,
                     .summary = fmt::format("the root mean square rises from {:.3g} to {:.3g}{}",
                                            origin.shift.usual, origin.shift.value,
                                            and_others(group.size() - 1, "tensor")),
                     .evidence = {{"root mean square", origin.place, origin.shift.first,
                                   origin.shift.value, ""},
                                  {"root mean square", origin.place, origin.shift.first - 1,
                                   origin.shift.usual, "usual"}}});
  }
  if (found.empty()) {
    if (auto growing = find_gradual_growth(facts, sizes)) found.push_back(std::move(*growing));
  }
  return found;
}

}  // namespace

Rule activation_jump() {
  return {.cause = "activation_jump",
          .title = "exploding activations or logits",
          .doc =
              "The root mean square of an activation or output grows by a factor of 6 or more "
              "within one iteration and stays there, or it was steady and grows by a factor of 16 "
              "within 16 iterations. The first such tensor in forward order is the origin. Slower "
              "growth is not reported. Growth at the start of the training is not reported if the "
              "same part of other blocks shares it, or if there is no such part and the tensor "
              "remains smaller than most others.",
          .stage = Stage::values,
          .required = {kSizes},
          .optional = {"numel", "mean"},
          .recorded_by =
              "LogTensorStats of activations and outputs (l2_norm and numel, or std and mean)",
          .alternatives =
              "Different data from this iteration on; a change to a weight that is not recorded.",
          .next_step = "telens plot RUN --layer '{layer}' --stat l2_norm --stat cur_amax",
          .find = find_activation_jump};
}

}  // namespace telens::analysis
