#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "features/diagnosis/rules/rules.h"
#include "features/diagnosis/sizes.h"

namespace telens::diagnosis {
namespace {

// Other data, whose loss is larger too: than any of the iterations before, since batches differ.
bool loss_rises(const Facts& facts, std::int64_t iteration) {
  constexpr double kRise = 1.15;
  constexpr std::ptrdiff_t kBefore = 4;
  for (const Scalars& scalars : facts.scalars()) {
    if (scalars.name != "loss") continue;
    const auto now = std::ranges::find(scalars.points, iteration, &Point::iteration);
    const auto past = now - scalars.points.begin();
    if (now == scalars.points.end() || past == 0) continue;
    const auto largest =
        std::ranges::max_element(now - std::min(past, kBefore), now, {}, &Point::value);
    return now->value > kRise * largest->value;
  }
  return false;
}

std::vector<Finding> find(const Facts& facts) {
  const std::vector<Series> gradients = root_mean_squares(facts, TensorName::gradient);
  std::vector<Finding> found;
  for (const int sign : {1, -1}) {
    for (const auto& together : shifts_together(gradients, sign, kGradientShift)) {
      if (!comes_from_loss(together, gradients)) continue;
      const PlaceShift& origin = together.front();
      if (loss_rises(facts, origin.shift.first)) continue;
      found.push_back(
          {.cause = "loss_scale",
           .place = {.rank = origin.place.rank},
           .first = origin.shift.first,
           .last = origin.shift.last,
           .confidence = kProbable,
           .summary = fmt::format("the gradients change by a factor of {:.3g} from the loss on",
                                  std::exp2(origin.settled_bits)),
           .evidence = {
               {"root mean square", origin.place, origin.shift.first, origin.shift.value, ""},
               {"root mean square", origin.place, origin.shift.first - 1, origin.shift.usual,
                "usual"}}});
    }
  }
  return found;
}

}  // namespace

Rule loss_scale() {
  return {.cause = "loss_scale",
          .title = "a factor on the loss, too large or too small",
          .doc =
              "The gradient of the layer next to the loss, and with it those of others, changes by "
              "a factor of 8 and more within an iteration and stays there, while the loss does "
              "not rise. Where it rises, it is the data.",
          .stage = Stage::values,
          .required = {kSizes},
          .optional = {"numel", "mean"},
          .recorded_by = "LogTensorStats of gradients (l2_norm and numel, or std and mean)",
          .alternatives =
              "A loss that is summed where it was averaged; another number of "
              "micro-batches; a loss scaler at work.",
          .next_step =
              "debug.record(\"loss_scale\", ...) in the training loop; telens plot RUN "
              "--tensor gradient --stat l2_norm",
          .find = find};
}

}  // namespace telens::diagnosis
