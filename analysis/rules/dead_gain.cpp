#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <vector>

#include "analysis/baseline.h"
#include "analysis/rules/rules.h"
#include "analysis/sizes.h"

namespace telens::analysis {
namespace {

// A normalized tensor has the size of its gain, whatever comes in: it hardly varies.
constexpr double kSteady = 0.25;  // bits between the largest and the smallest of the past
constexpr ShiftOptions kShift{.least_bits = 1};
// A gain that is multiplied by at most 0.95 in each step. Changes by training are slower.
constexpr RampOptions kDecay{.least_bits = 1, .steady = kSteady};

// Checks the last points and the steps between them: outputs of attention or of an activation
// function may also stay within kSteady for a while, but move more in each iteration.
bool is_steady_before(const Series& sizes, std::int64_t iteration) {
  constexpr double kStep = 0.03;  // bits
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
  return largest - smallest < kSteady && median(std::move(steps)) < kStep;
}

// Each quarter of the steps contributes to the fall, so it is not a training phase.
bool is_even(std::span<const Point> falling) {
  constexpr std::size_t kParts = 4;
  constexpr double kLeast = 0.1;  // part of the fall
  constexpr double kMost = 0.5;
  const std::size_t last = falling.size() - 1;
  const auto at = [&](std::size_t part) { return bits(falling[part * last / kParts].value); };
  const double fall = at(0) - at(kParts);
  for (std::size_t part = 0; part < kParts; ++part) {
    const double share = (at(part) - at(part + 1)) / fall;
    if (share < kLeast || share > kMost) return false;
  }
  return true;
}

// A new gain is 1 in the first iteration of the run. If that iteration is warm-up, which is
// skipped, a gain that shrinks by a constant factor also shrank there.
bool begins_as_one(const std::vector<Point>& points, std::int64_t first_of_run) {
  constexpr double kFresh = 0.01;         // off 1
  constexpr double kExtrapolated = 0.02;  // off 1
  constexpr std::int64_t kMissing = 2;
  constexpr std::size_t kSteps = 4;
  constexpr double kUnlike = 0.25;  // part of the mean step
  const std::int64_t missing = points.front().iteration - first_of_run;
  if (std::abs(points.front().value - 1) <= kFresh) return true;
  if (missing <= 0 || missing > kMissing || points.size() <= kSteps) return false;
  const double first = bits(points.front().value);
  const double mean = (bits(points[kSteps].value) - first) / kSteps;
  for (std::size_t i = 1; i <= kSteps; ++i) {
    const double step = bits(points[i].value) - bits(points[i - 1].value);
    if (!(std::abs(step - mean) <= kUnlike * std::abs(mean))) return false;
  }
  const double start = std::exp2(first - mean * static_cast<double>(missing));
  return std::abs(start - 1) <= kExtrapolated;
}

// The output of a norm is centered at 0; the output of an activation function is not.
bool is_around_zero(const Facts& facts, const Series& sizes) {
  constexpr double kMost = 0.2;  // part of the root mean square
  const Series* mean = facts.beside(sizes, "mean");
  const auto first = mean != nullptr ? mean->at(sizes.points.front().iteration) : std::nullopt;
  return !first || std::abs(*first) <= kMost * sizes.points.front().value;
}

// A gain starts at 1. If it shrinks steadily from the first step on, the cause is a factor in each
// step, such as weight decay, and not a gradient: gradients move a gain in both directions.
std::optional<Shift> decay_from_start(const Facts& facts, const Series& sizes) {
  constexpr double kFall = 0.32;  // bits: to 80 %
  constexpr double kBack = 0.1;   // part of the fall that steps go up
  constexpr double kStep = 0.5;   // part of the fall in one step
  constexpr std::size_t kLeast = 8;
  const auto& points = sizes.points;
  if (points.size() <= kLeast || !begins_as_one(points, facts.first_iteration()) ||
      !is_around_zero(facts, sizes)) {
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
    if (i < kLeast || fall < kFall || up > kBack * fall || largest > kStep * fall) continue;
    if (!is_even(std::span(points).first(i + 1))) continue;
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
  return {.cause = "dead_gain",
          .place = place,
          .first = decay.first,
          .last = decay.last,
          .confidence = kProbable,
          .summary = fmt::format(
              "a normalized input shrinks from the first step on, by {:.2g} % a step, to a root "
              "mean square of {:.3g}: the gain of the norm decays, as by weight decay",
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
    auto shift = first_shift(sizes.points, kShift);
    const bool fell = shift && shift->bits < 0 && is_steady_before(sizes, shift->first);
    if (!fell) shift = first_ramp(sizes.points, -1, kDecay);
    if (!shift || !is_steady_before(sizes, shift->first)) continue;
    found.push_back(
        {.cause = "dead_gain",
         .place = sizes.place,
         .first = shift->first,
         .last = shift->last,
         .confidence = kProbable,
         .summary = fmt::format("a normalized input falls to a root mean square of {:.3g}, {:.3g} "
                                "before: the gain of the norm, or the input after it",
                                shift->value, shift->usual),
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
              "within one iteration or steadily within 16. Also reported: an input that starts "
              "at 1 with a mean near 0, as after a new gain, and falls evenly to 80 % or less "
              "from the first step on.",
          .stage = Stage::values,
          .required = {kSizes},
          .optional = {"numel", "mean"},
          .recorded_by = "LogTensorStats of activations (l2_norm and numel, or std and mean)",
          .alternatives = "An input that was steady without a norm and is now scaled differently.",
          .next_step =
              "print the weight of the norm before '{layer}'; keep gains in a parameter group with "
              "weight_decay=0, and out of low precision",
          .find = find_dead_gain};
}

}  // namespace telens::analysis
