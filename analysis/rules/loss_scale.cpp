#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "analysis/rules/loss_gradient.h"
#include "analysis/rules/rules.h"
#include "analysis/sizes.h"

namespace telens::analysis {
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

Finding loss_scale_finding(const PlaceShift& origin) {
  return {
      .cause = "loss_scale",
      .place = {.rank = origin.place.rank},
      .first = origin.shift.first,
      .last = origin.shift.last,
      .confidence = kProbable,
      .summary = fmt::format("the gradients change by a factor of {:.3g}, already in the recorded "
                             "layer next to the loss",
                             std::exp2(origin.settled_bits)),
      .evidence = {
          {"root mean square", origin.place, origin.shift.first, origin.shift.value, ""},
          {"root mean square", origin.place, origin.shift.first - 1, origin.shift.usual, "usual"}}};
}

// Another number of rows changes the gradient of a mean.
bool has_as_many_rows(const Facts& facts, const Place& place, std::int64_t iteration) {
  const Series* count = facts.find(place, "numel");
  const Point* before = count != nullptr ? count->before(iteration) : nullptr;
  return before == nullptr || count->at(iteration).value_or(before->value) == before->value;
}

// With delayed scaling, a gradient follows the factor only after the scales of the layers between
// it and the loss have grown.
bool follows(const Series& gradient, const Shift& shift, double factor) {
  constexpr double kAlike = 1;  // bits
  constexpr std::int64_t kLatest = 2;
  for (std::int64_t delay = 0; delay <= kLatest; ++delay) {
    if (std::abs(settled_bits(gradient, shift, delay) - factor) <= kAlike) return true;
  }
  return false;
}

// One factor on all gradients, as a loss scale causes. The gradient next to the loss varies least,
// so it shows smaller factors than other gradients can; most gradients must agree with it.
std::optional<Finding> one_factor(const Facts& facts, const std::vector<Series>& gradients) {
  constexpr ShiftOptions kFactor{.least_bits = 2.5, .sustained = 4, .passing = 8};
  constexpr double kMost = 0.75;
  if (gradients.empty()) return std::nullopt;
  const Series& next_to_loss = gradients.front();
  const auto shift = first_shift(next_to_loss.points, kFactor);
  if (!shift || !has_as_many_rows(facts, next_to_loss.place, shift->first)) return std::nullopt;
  const double factor = settled_bits(next_to_loss, *shift);
  std::size_t others = 0;
  std::size_t alike = 0;
  for (const Series& each : gradients) {
    if (each.place.rank != next_to_loss.place.rank || &each == &next_to_loss) continue;
    ++others;
    if (follows(each, *shift, factor)) ++alike;
  }
  if (others == 0 || static_cast<double>(alike) < kMost * static_cast<double>(others)) {
    return std::nullopt;
  }
  return loss_scale_finding({next_to_loss.place, *shift, factor});
}

std::vector<Finding> find_loss_scale(const Facts& facts) {
  const std::vector<Series> gradients = root_mean_squares(facts, TensorName::gradient);
  std::vector<Finding> found;
  for (const int sign : {1, -1}) {
    for (const auto& together : shifts_together(gradients, sign, kGradientShift)) {
      if (!comes_from_loss(together, gradients)) continue;
      const PlaceShift& origin = together.front();
      if (loss_rises(facts, origin.shift.first)) continue;
      found.push_back(loss_scale_finding(origin));
    }
  }
  auto factor = one_factor(facts, gradients);
  const auto is_known = [&](const Finding& each) {
    return std::abs(each.first - factor->first) <= 1;
  };
  if (factor && !loss_rises(facts, factor->first) && std::ranges::none_of(found, is_known)) {
    found.push_back(std::move(*factor));
  }
  if (auto from_the_start = wrong_loss_gradient(facts)) found.push_back(std::move(*from_the_start));
  return found;
}

}  // namespace

Rule loss_scale() {
  return {.cause = "loss_scale",
          .title = "wrong factor on the loss",
          .doc =
              "The gradient of the layer next to the loss, and with it the gradients of other "
              "layers, changes by a factor of 8 or more within one iteration and stays there, "
              "while the loss does not rise. If the loss rises, the data are the likely cause. A "
              "factor of 6 is enough if three quarters of all gradients change by the same factor "
              "and the batch size does not change. From the first iteration on: a gradient of the "
              "logits that is larger or smaller than the gradient of a mean cross entropy by the "
              "number "
              "of micro-batches, or smaller by the number of classes.",
          .stage = Stage::values,
          .required = {kSizes},
          .optional = {"numel", "mean", "min", "max", "std"},
          .recorded_by = "LogTensorStats of gradients (l2_norm and numel, or std and mean)",
          .alternatives =
              "A loss that is summed instead of averaged; a different number of micro-batches; an "
              "active loss scaler.",
          .next_step =
              "debug.record(\"loss_scale\", ...) in the training loop; telens plot RUN "
              "--tensor gradient --stat l2_norm",
          .find = find_loss_scale};
}

}  // namespace telens::analysis
