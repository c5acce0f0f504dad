#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <vector>

#include "analysis/baseline.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

// A normalized tensor has the size of its gain for any input, so its size hardly varies.
constexpr double kMaxPastRange = 0.25;  // bits between the largest and smallest past size
constexpr ShiftOptions kGainFall{.least_bits = 1};
// A gain that falls to half within 16 points: by a factor of about 0.95 in each step. Training
// changes gains more slowly.
constexpr RampOptions kGainDecay{.least_bits = 1, .steady = kMaxPastRange};

// Returns true if the last 64 points before the iteration stay within kMaxPastRange and the median
// step between them is small. The range is not sufficient: outputs of attention or of an activation
// function may also stay within it for a while, but they move more in each iteration.
bool is_steady_before(const Series& sizes, std::int64_t iteration) {
  constexpr double kMaxMedianStep = 0.03;  // bits
  constexpr std::ptrdiff_t kWindow = 64;
  const auto end = std::ranges::lower_bound(sizes.points, iteration, {}, &Point::iteration);
  const auto begin = end - std::min(kWindow, end - sizes.points.begin());
  if (end - begin < 2) return false;
  std::vector<double> steps;
  double smallest = bits(begin->value);
  double largest = smallest;
  for (auto point = begin + 1; point != end; ++point) {
    const double size = bits(point->value);
    steps.push_back(std::abs(size - bits((point - 1)->value)));
    smallest = std::min(smallest, size);
    largest = std::max(largest, size);
  }
  return largest - smallest < kMaxPastRange && median(std::move(steps)) < kMaxMedianStep;
}

// Returns true if each quarter of the steps contributes to the fall. Otherwise it may be a phase of
// the training.
bool is_even_fall(std::span<const Point> falling) {
  constexpr std::size_t kParts = 4;
  constexpr double kMinShare = 0.1;  // of the fall, in bits
  constexpr double kMaxShare = 0.5;
  const std::size_t last = falling.size() - 1;
  const auto at = [&](std::size_t part) { return bits(falling[part * last / kParts].value); };
  const double fall = at(0) - at(kParts);
  for (std::size_t part = 0; part < kParts; ++part) {
    const double share = (at(part) - at(part + 1)) / fall;
    if (share < kMinShare || share > kMaxShare) return false;
  }
  return true;
}

// Returns true if the size is 1 in the first iteration of the run, like the size of a new gain. If
// that iteration is missing because warm-up is skipped, extrapolates a size that shrinks by a
// constant factor.
bool begins_as_one(const std::vector<Point>& points, std::int64_t first_of_run) {
  constexpr double kMaxOffset = 0.01;  // distance from 1
  constexpr double kMaxOffsetExtrapolated = 0.02;
  constexpr std::int64_t kMaxMissing = 2;  // iterations
  constexpr std::size_t kSteps = 4;
  constexpr double kMaxStepDeviation = 0.25;  // relative to the mean step
  const std::int64_t missing = points.front().iteration - first_of_run;
  if (std::abs(points.front().value - 1) <= kMaxOffset) return true;
  if (missing <= 0 || missing > kMaxMissing || points.size() <= kSteps) return false;
  const double first = bits(points.front().value);
  const double mean = (bits(points[kSteps].value) - first) / kSteps;
  for (std::size_t i = 1; i <= kSteps; ++i) {
    const double step = bits(points[i].value) - bits(points[i - 1].value);
    if (!(std::abs(step - mean) <= kMaxStepDeviation * std::abs(mean))) return false;
  }
  const double start = std::exp2(first - mean * static_cast<double>(missing));
  return std::abs(start - 1) <= kMaxOffsetExtrapolated;
}

// Returns true if the first mean is near 0 or was not recorded. The output of a norm is centered at
// 0; the output of an activation function is not.
bool has_centered_input(const Facts& facts, const Series& sizes) {
  constexpr double kMaxMean = 0.2;  // relative to the root mean square
  const Series* mean = facts.beside(sizes, "mean");
  const auto first = mean != nullptr ? mean->at(sizes.points.front().iteration) : std::nullopt;
  return !first || std::abs(*first) <= kMaxMean * sizes.points.front().value;
}

// Detects a gain that starts at 1 and shrinks steadily from the first step on. The cause is then a
// factor in each step, such as weight decay: gradients move a gain in both directions.
std::optional<Shift> decay_from_start(const Facts& facts, const Series& sizes) {
  constexpr double kMinFall = 0.32;  // bits: to 80 %
  constexpr double kMaxRise = 0.1;   // sum of the upward steps, relative to the fall
  constexpr double kMaxStep = 0.5;   // largest step, relative to the fall
  constexpr std::size_t kMinSteps = 8;
  const auto& points = sizes.points;
  if (points.size() <= kMinSteps || !begins_as_one(points, facts.first_iteration()) ||
      !has_centered_input(facts, sizes)) {
    return std::nullopt;
  }
  double up = 0;
  double largest = 0;
  std::optional<Shift> decay;
  for (std::size_t i = 1; i < points.size(); ++i) {
    const double step = bits(points[i].value) - bits(points[i - 1].value);
    const double fall = bits(points.front().value) - bits(points[i].value);
    up += std::max(0.0, step);
    largest = std::max(largest, -step);
    if (i < kMinSteps || fall < kMinFall || up > kMaxRise * fall || largest > kMaxStep * fall)
      continue;
    if (!is_even_fall(std::span(points).first(i + 1))) continue;
    decay = Shift{.first = points[1].iteration,
                  .last = points[i].iteration,
                  .bits = -fall,
                  .usual = points.front().value,
                  .value = points[i].value};
  }
  return decay;
}

Finding dead_gain_finding(const Place& place, const Shift& decay) {
  const double steps = static_cast<double>(decay.last - decay.first + 1);
  return {
      .cause = "dead_gain",
      .place = place,
      .first = decay.first,
      .last = decay.last,
      .confidence = kProbable,
      .summary = fmt::format(
          "the root mean square of a normalized input shrinks from the first step on, by {:.2g} % "
          "per step to {:.3g}: the gain of the norm decays, as it does under weight decay",
          100 * (1 - std::exp2(decay.bits / steps)), decay.value),
      .evidence = {{"root mean square", place, decay.first - 1, decay.usual, "at the start"},
                   {"root mean square", place, decay.last, decay.value, ""}}};
}

std::vector<Finding> find_dead_gain(const Facts& facts) {
  std::vector<Finding> found;
  for (const Series& sizes : root_mean_squares(facts, TensorName::activation)) {
    if (const auto decay = decay_from_start(facts, sizes)) {
      found.push_back(dead_gain_finding(sizes.place, *decay));
      continue;
    }
    auto shift = first_shift(sizes.points, kGainFall);
    const bool fell = shift && shift->bits < 0 && is_steady_before(sizes, shift->first);
    if (!fell) shift = first_ramp(sizes.points, -1, kGainDecay);
    if (!shift || !is_steady_before(sizes, shift->first)) continue;
    found.push_back(
        {.cause = "dead_gain",
         .place = sizes.place,
         .first = shift->first,
         .last = shift->last,
         .confidence = kProbable,
         .summary = fmt::format("the root mean square of a normalized input falls from {:.3g} to "
                                "{:.3g}: the gain of the norm changed, or the input after the norm",
                                shift->usual, shift->value),
         .evidence = {{"root mean square", sizes.place, shift->first, shift->value, ""},
                      {"root mean square", sizes.place, shift->first - 1, shift->usual, "usual"}}});
  }
  return found;
}

}  // namespace

Rule dead_gain() {
  return {.cause = "dead_gain",
          .title = "norm gain that decays or dies",
          .doc =
              "The root mean square of a layer's input was as steady as in a normalized tensor: "
              "within 19 % overall and 2 % between iterations. Then it falls to half or less, "
              "within one iteration or steadily within 16. Also reported: an input that starts at "
              "1 with a mean near 0, as after a new gain, and falls evenly to 80 % or less from "
              "the first step on.",
          .stage = Stage::values,
          .required = {kSizes},
          .optional = {"numel", "mean"},
          .recorded_by = "LogTensorStats of activations (l2_norm and numel, or std and mean)",
          .alternatives = "An input that was steady without a norm and is now scaled differently.",
          .next_step =
              "print the weight of the norm before '{layer}'; put gains in a parameter group with "
              "weight_decay=0 and keep them in high precision",
          .find = find_dead_gain};
}

}  // namespace telens::analysis
