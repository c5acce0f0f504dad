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
// A gain that is multiplied by 0.95 and less in each step. What training does to it takes longer.
constexpr RampOptions kDecay{.least_bits = 1, .steady = kSteady};

// In the last points before, and from each to the next: what attention or an activation function
// gives stays within kSteady for a while too, and moves by more in each iteration.
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

// Each quarter of the steps has a part of the fall: it is no phase of a training.
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

// As that of a fresh gain, in the first iteration of the run. Where this is warm-up, which is not
// looked at, a gain that loses the same part in each step had lost it before as well.
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

// The output of a norm lies around 0; that of an activation function does not.
bool is_around_zero(const Facts& facts, const Series& sizes) {
  constexpr double kMost = 0.2;  // part of the root mean square
  const Series* mean = facts.beside(sizes, "mean");
  const auto first = mean != nullptr ? mean->at(sizes.points.front().iteration) : std::nullopt;
  return !first || std::abs(*first) <= kMost * sizes.points.front().value;
}

// A gain begins as 1. Where it shrinks from the first step on, without a pause, it is a factor in
// each step, as of weight decay, and no gradient: those move a gain to and fro.
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

Finding make_finding(const Place& place, const Shift& decay) {
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

std::vector<Finding> find(const Facts& facts) {
  std::vector<Finding> found;
  for (const Series& sizes : root_mean_squares(facts, TensorName::activation)) {
    if (const auto decay = decay_from_start(facts, sizes)) {
      found.push_back(make_finding(sizes.place, *decay));
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
  return {
      .cause = "dead_gain",
      .title = "a norm whose gain decays or dies",
      .doc =
          "The root mean square of a layer's input was steady within 19 %, and within 2 % from one "
          "iteration to the next, as that of a normalized tensor is, and falls to half of it and "
          "less, within an iteration or step by step within 16. So is one that begins at 1, as "
          "that of a fresh gain, has a mean near 0, and falls to 80 % and less from the first step "
          "on, evenly and hardly going back.",
      .stage = Stage::values,
      .required = {kSizes},
      .optional = {"numel", "mean"},
      .recorded_by = "LogTensorStats of activations (l2_norm and numel, or std and mean)",
      .alternatives = "An input that was steady without a norm, and is scaled otherwise now.",
      .next_step =
          "print the weight of the norm before '{layer}'; keep gains in a parameter group with "
          "weight_decay=0, and out of low precision",
      .find = find};
}

}  // namespace telens::analysis
