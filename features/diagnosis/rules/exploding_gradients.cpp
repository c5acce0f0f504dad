#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "features/diagnosis/rules/rules.h"
#include "features/diagnosis/sizes.h"

namespace telens::diagnosis {
namespace {

std::vector<Finding> find(const Facts& facts, std::string_view cause, int sign) {
  const std::vector<Series> gradients = root_mean_squares(facts, TensorName::gradient);
  std::vector<Finding> found;
  for (const auto& together : shifts_together(gradients, sign, kGradientShift)) {
    if (comes_from_loss(together, gradients)) continue;
    const PlaceShift& origin = together.front();
    found.push_back({.cause = cause,
                     .place = origin.place,
                     .first = origin.shift.first,
                     .last = origin.shift.last,
                     .confidence = kProbable,
                     .summary = fmt::format("the gradient is {:.3g} times {} than before{}",
                                            std::exp2(std::abs(origin.shift.bits)),
                                            sign > 0 ? "larger" : "smaller",
                                            and_others(together.size() - 1, "layer")),
                     .evidence = {{"root mean square", origin.place, origin.shift.first,
                                   origin.shift.value, ""},
                                  {"root mean square", origin.place, origin.shift.first - 1,
                                   origin.shift.usual, "usual"}}});
  }
  return found;
}

std::vector<Finding> exploding(const Facts& facts) { return find(facts, "exploding_gradients", 1); }
std::vector<Finding> vanishing(const Facts& facts) {
  return find(facts, "vanishing_gradients", -1);
}

}  // namespace

Rule exploding_gradients() {
  return {.cause = "exploding_gradients",
          .title = "gradients that explode from a layer on",
          .doc =
              "The gradient of a layer grows 8 times and more within an iteration and stays "
              "there; of several the one nearest to the loss is the origin, since the backward "
              "pass comes from there.",
          .stage = Stage::propagation,
          .required = {kSizes},
          .optional = {"numel", "mean"},
          .recorded_by = "LogTensorStats of gradients (l2_norm and numel, or std and mean)",
          .alternatives = "Where it comes so from the loss: the data, or the loss itself.",
          .next_step =
              "telens plot RUN --tensor gradient --stat l2_norm; look at what lies between "
              "'{layer}' and the layer behind it",
          .find = exploding};
}

Rule vanishing_gradients() {
  return {.cause = "vanishing_gradients",
          .title = "gradients that vanish from a layer on",
          .doc =
              "The gradient of a layer falls to an eighth and less, or to zero, within an "
              "iteration and stays there; of several the one nearest to the loss is the origin.",
          .stage = Stage::propagation,
          .required = {kSizes},
          .optional = {"numel", "mean"},
          .recorded_by = "LogTensorStats of gradients (l2_norm and numel, or std and mean)",
          .alternatives = "A part of the model that was frozen, or cut off by detach().",
          .next_step =
              "telens plot RUN --tensor gradient --stat l2_norm; look at what lies between "
              "'{layer}' and the layer behind it",
          .find = vanishing};
}

}  // namespace telens::diagnosis
