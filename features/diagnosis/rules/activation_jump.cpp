#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "features/diagnosis/rules/rules.h"
#include "features/diagnosis/sizes.h"

namespace telens::diagnosis {
namespace {

std::vector<Finding> find(const Facts& facts) {
  std::vector<Series> sizes = root_mean_squares(facts, TensorName::activation);
  std::ranges::move(root_mean_squares(facts, TensorName::output), std::back_inserter(sizes));
  std::vector<Finding> found;
  for (const auto& together : shifts_together(sizes, 1, kActivationShift)) {
    const PlaceShift& origin = together.front();
    if (crest_change(facts, origin.place, origin.shift) > kOfOutliers) continue;
    found.push_back({.cause = "activation_jump",
                     .place = origin.place,
                     .first = origin.shift.first,
                     .last = origin.shift.last,
                     .confidence = kProbable,
                     .summary = fmt::format("the root mean square goes from {:.3g} to {:.3g}{}",
                                            origin.shift.usual, origin.shift.value,
                                            and_others(together.size() - 1, "tensor")),
                     .evidence = {{"l2_norm / sqrt(numel)", origin.place, origin.shift.first,
                                   origin.shift.value, ""},
                                  {"l2_norm / sqrt(numel)", origin.place, origin.shift.first - 1,
                                   origin.shift.usual, "usual"}}});
  }
  return found;
}

}  // namespace

Rule activation_jump() {
  return {.cause = "activation_jump",
          .title = "activations or logits that explode",
          .doc =
              "The root mean square of an activation or an output goes up 6 times and more "
              "within an iteration and stays there; the first one in the order of training is "
              "the origin. A steady growth is no finding.",
          .stage = Stage::values,
          .required = {"l2_norm", "numel"},
          .recorded_by = "LogTensorStats of activations and outputs (l2_norm, numel)",
          .alternatives = "Other data from here on; a weight that was changed and is not recorded.",
          .next_step = "telens plot RUN --layer '{layer}' --stat l2_norm --stat cur_amax",
          .find = find};
}

}  // namespace telens::diagnosis
