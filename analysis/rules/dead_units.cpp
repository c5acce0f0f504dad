#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "analysis/baseline.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

// A fall of the share of nonzero elements to 2^-0.7 = 62 %. ReLU keeps this share within a few
// percent.
constexpr ShiftOptions kLiveShareFall{.least_bits = 0.7, .sustained = 4};

Series live_shares(const Series& zeros, const Series& count) {
  Series live{.place = zeros.place};
  for (const auto& [iteration, value] : zeros.points) {
    const auto elements = count.at(iteration);
    if (elements && *elements > 0) live.points.push_back({iteration, 1 - value / *elements});
  }
  return live;
}

std::vector<Finding> find_dead_units(const Facts& facts) {
  std::vector<Finding> found;
  for (const Series* zeros : facts.with("zeros")) {
    const Series* count = facts.beside(*zeros, "numel");
    if (zeros->place.tensor != TensorName::activation || count == nullptr) continue;
    const auto shift = first_shift(live_shares(*zeros, *count).points, kLiveShareFall);
    // If all elements are zero, the activation has collapsed (collapsed_activation).
    if (!shift || shift->bits > 0 || !(shift->value > 0)) continue;
    found.push_back(
        {.cause = "dead_units",
         .place = zeros->place,
         .first = shift->first,
         .last = shift->last,
         .confidence = kProbable,
         .summary =
             fmt::format("the share of zeros rises from {:.3g} % to {:.3g} % of the elements",
                         100 * (1 - shift->usual), 100 * (1 - shift->value)),
         .evidence = {
             {"zeros / numel", zeros->place, shift->first, 1 - shift->value, ""},
             {"zeros / numel", zeros->place, shift->first - 1, 1 - shift->usual, "usual"}}});
  }
  return found;
}

}  // namespace

Rule dead_units() {
  return {.cause = "dead_units",
          .title = "units that output only zeros",
          .doc =
              "The share of nonzero inputs of a layer falls to 60 % or less of its earlier share "
              "within one iteration and stays there. Zeros that ReLU, dropout or padding cause "
              "from the start are not reported.",
          // Sorted before the jump of the layer's inputs (Stage::values) that keeps the units at
          // zero.
          .stage = Stage::update,
          .required = {"zeros", "numel"},
          .recorded_by = "LogTensorStats of activations (numel)",
          .alternatives = "More padding or dropout from this iteration on; pruning.",
          .next_step =
              "telens plot RUN --layer '{layer}' --tensor activation --stat zeros; check the bias "
              "and the weight of the preceding layer",
          .find = find_dead_units};
}

}  // namespace telens::analysis
