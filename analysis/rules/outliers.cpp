#include <fmt/format.h>

#include <cmath>

#include "analysis/baseline.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

// The crest factor is amax / root mean square: at most sqrt(n) for n elements, and 4 to 5 for a
// Gaussian tensor.
constexpr ShiftOptions kCrestShift{.least_bits = 2};
constexpr double kMinCrest = 16;
// In gradients, temporary outliers are normal.
constexpr ShiftOptions kGradientCrestShift{.least_bits = 3, .sustained = 4};
constexpr double kMinGradientCrest = 64;

Finding outliers_finding(const Place& place, std::int64_t first, std::int64_t last, double crest,
                         double usual) {
  return {
      .cause = "outliers",
      .place = place,
      .first = first,
      .last = last,
      .confidence = kProbable,
      .summary = fmt::format(
          "outlier values: the largest is {:.3g} times the root mean square (before: {:.3g} times)",
          crest, usual),
      .evidence = {{"cur_amax / rms", place, first, crest, ""},
                   {"cur_amax / rms", place, first - 1, usual, "usual"}}};
}

// Detects tensors whose amax grows relative to the root mean square.
void find_by_crest(const Facts& facts, TensorName tensor, std::vector<Finding>& found) {
  const bool gradient = tensor == TensorName::gradient;
  const ShiftOptions& options = gradient ? kGradientCrestShift : kCrestShift;
  for (const auto& group : shifts_together(crest_factors(facts, tensor), 1, options)) {
    const PlaceShift& origin = group.front();
    if (origin.shift.value < (gradient ? kMinGradientCrest : kMinCrest)) continue;
    found.push_back(outliers_finding(origin.place, origin.shift.first, origin.shift.last,
                                     origin.shift.value, origin.shift.usual));
  }
}

// Detects activations whose root mean square also grows, because a channel is large enough.
void find_by_size(const Facts& facts, std::vector<Finding>& found) {
  const std::vector<Series> sizes = root_mean_squares(facts, TensorName::activation);
  for (const auto& group : shifts_together(sizes, 1, kActivationShift)) {
    const auto& [place, shift, settled] = group.front();
    const double change = crest_change(facts, place, shift);
    if (change <= kOfOutliers) continue;
    const double crest = facts.find(place, "cur_amax")->at(shift.first).value_or(0) / shift.value;
    found.push_back(
        outliers_finding(place, shift.first, shift.last, crest, crest / std::exp2(change)));
  }
}

std::vector<Finding> find_outliers(const Facts& facts) {
  std::vector<Finding> found;
  for (const TensorName tensor :
       {TensorName::activation, TensorName::weight, TensorName::gradient}) {
    find_by_crest(facts, tensor, found);
  }
  if (found.empty()) find_by_size(facts, found);
  return found;
}

}  // namespace

Rule outliers() {
  return {
      .cause = "outliers",
      .title = "outlier values, channels or tokens",
      .doc =
          "The ratio of amax to root mean square grows by a factor of 4 within one iteration, to "
          "16 or more, and stays there, or both grow and the amax grows more. Ratios that are "
          "large from the start or grow steadily, as with attention sinks, are not reported.",
      .stage = Stage::values,
      .required = {kSizes, "cur_amax"},
      .optional = {"numel", "mean"},
      .recorded_by = "LogTensorStats (l2_norm and numel, or std and mean; cur_amax)",
      .alternatives = "An element that a memory error or a kernel error changed.",
      .next_step =
          "use DumpTensors on '{layer}' in that iteration to find the channel or token; a recipe "
          "with one scale per block limits the effect to that block; telens stats RUN --stat "
          "mxfp8_underflows% --layer '{layer}'",
      .find = find_outliers};
}

}  // namespace telens::analysis
