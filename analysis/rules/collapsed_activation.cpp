#include <fmt/format.h>

#include <vector>

#include "analysis/baseline.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

// A factor of 2^5. A healthy standard deviation changes little from one iteration to the next.
constexpr ShiftOptions kDeviationCollapse{.least_bits = 5};

std::vector<Finding> find_collapsed_activation(const Facts& facts) {
  std::vector<Finding> found;
  for (const Series* deviation : facts.with("std")) {
    const auto tensor = deviation->place.tensor;
    if (tensor != TensorName::activation && tensor != TensorName::output) continue;
    const auto shift = first_shift(deviation->points, kDeviationCollapse);
    if (!shift || shift->bits > 0) continue;
    found.push_back(
        {.cause = "collapsed_activation",
         .place = deviation->place,
         .first = shift->first,
         .last = shift->last,
         .confidence = kProven,
         .summary = fmt::format(
             "all elements are nearly equal: the standard deviation falls from {:.3g} to {:.3g}",
             shift->usual, shift->value),
         .evidence = {{"std", deviation->place, shift->first, shift->value, ""},
                      {"std", deviation->place, shift->first - 1, shift->usual, "usual"}}});
  }
  return found;
}

}  // namespace

Rule collapsed_activation() {
  return {.cause = "collapsed_activation",
          .title = "activation collapsed to one value",
          .doc =
              "The standard deviation of an activation or output falls by a factor of 32 within "
              "one iteration and stays there. Zeros from ReLU or padding do not cause this.",
          .stage = Stage::values,
          .required = {"std"},
          .recorded_by = "LogTensorStats (std)",
          .alternatives = "Empty inputs, such as a batch of padding.",
          .next_step = "telens plot RUN --layer '{layer}' --stat std --stat mean",
          .find = find_collapsed_activation};
}

}  // namespace telens::analysis
