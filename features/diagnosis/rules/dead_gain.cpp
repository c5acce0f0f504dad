#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "features/diagnosis/baseline.h"
#include "features/diagnosis/rules/rules.h"
#include "features/diagnosis/sizes.h"

namespace telens::diagnosis {
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

std::vector<Finding> find(const Facts& facts) {
  std::vector<Finding> found;
  for (const Series& sizes : root_mean_squares(facts, TensorName::activation)) {
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
          "less, within an iteration or step by "
          "step within 16.",
      .stage = Stage::values,
      .required = {kSizes},
      .optional = {"numel", "mean"},
      .recorded_by = "LogTensorStats of activations (l2_norm and numel, or std and mean)",
      .alternatives = "An input that was steady without a norm, and is scaled otherwise now.",
      .next_step =
          "print the weight of the norm before '{layer}'; keep gains out of weight "
          "decay and of low precision",
      .find = find};
}

}  // namespace telens::diagnosis
