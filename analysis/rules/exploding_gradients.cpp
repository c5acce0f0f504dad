#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "analysis/rules/rules.h"
#include "analysis/sizes.h"

namespace telens::analysis {
namespace {

// The gradient of the layer behind went through most of the change too: it came from there.
bool comes_from_behind(const PlaceShift& change, const std::vector<Series>& gradients) {
  constexpr double kMost = 0.6;
  const Series* behind = nullptr;  // the series before it, with its rank
  for (const Series& each : gradients) {
    if (each.place == change.place) break;
    if (each.place.rank == change.place.rank) behind = &each;
  }
  if (behind == nullptr) return false;
  return settled_bits(*behind, change.shift) / change.settled_bits >= kMost;
}

std::vector<Finding> find(const Facts& facts, std::string_view cause, int sign) {
  const std::vector<Series> gradients = root_mean_squares(facts, TensorName::gradient);
  std::vector<Finding> found;
  for (const auto& together : shifts_together(gradients, sign, kGradientShift)) {
    if (comes_from_loss(together, gradients)) continue;
    const auto first = std::ranges::find_if_not(
        together, [&](const PlaceShift& each) { return comes_from_behind(each, gradients); });
    if (first == together.end()) continue;
    const PlaceShift& origin = *first;
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

// Changes that all gradients go through together, by chance or as a training goes on, cancel in the
// ratio of a layer's gradient to that of the layer behind it: in healthy trainings it stays within
// 1.8 bits of its past.
constexpr RampOptions kRamp{.least_bits = 5, .steady = 1.4, .least_past = 10, .back = 0.8};
// By which the gradient itself has to move: that of the layer in front of a change does not.
constexpr double kOwnBits = 1.5;
constexpr double kOwnBitsOfRamp = 3;

Series ratios(const Series& gradient, const Series& behind) {
  Series series{.place = gradient.place};
  for (const auto& [iteration, size] : gradient.points) {
    const auto other = behind.at(iteration);
    if (!other || !(*other > 0) || !(size > 0)) continue;
    series.points.push_back({iteration, size / *other});
  }
  return series;
}

// From before the ramp to its end.
double own_bits(const Series& gradient, const Shift& ramp) {
  const Point* before = gradient.before(ramp.first);
  const Point* after = gradient.before(ramp.last + 1);
  return before == nullptr || after == nullptr ? 0 : bits(after->value) - bits(before->value);
}

struct Departure {
  Shift shift;
  bool gradual = false;
};

// From its past ratio, at once or by a factor in each iteration: the earlier one, since a batch
// that shakes the layer behind makes a step of growth look like a jump.
std::optional<Departure> departure(const Series& gradient, const Series& behind, int sign) {
  const Series ratio = ratios(gradient, behind);
  auto shift = first_shift(ratio.points, kGradientShift);
  if (shift && (sign * shift->bits <= 0 || sign * settled_bits(gradient, *shift) <= kOwnBits)) {
    shift.reset();
  }
  const auto ramp = first_ramp(ratio.points, sign, kRamp);
  if (ramp && sign * own_bits(gradient, *ramp) > kOwnBitsOfRamp &&
      (!shift || ramp->first < shift->first)) {
    return Departure{*ramp, true};
  }
  return shift ? std::optional(Departure{*shift}) : std::nullopt;
}

Finding make_finding(const Facts& facts, std::string_view cause, int sign, const Series& gradient,
                     const Series& behind, const Departure& departure) {
  const Shift& shift = departure.shift;
  return {.cause = cause,
          .place = gradient.place,
          .first = shift.first,
          .last = shift.last,
          .confidence = kProbable,
          .summary = fmt::format(
              "the gradient {}{}, against that of {}", sign > 0 ? "grows" : "shrinks",
              departure.gradual ? " in each iteration" : "", facts.layer_name(behind.place.layer)),
          .evidence = {{"ratio of root mean squares", gradient.place, shift.first - 1, shift.usual,
                        "usual"},
                       {"ratio of root mean squares", gradient.place, shift.last, shift.value, ""}},
          .gradual = departure.gradual};
}

// The first one of those that begin together, from the loss on.
std::optional<Finding> against_the_layer_behind(const Facts& facts, std::string_view cause,
                                                int sign) {
  const std::vector<Series> gradients = root_mean_squares(facts, TensorName::gradient);
  std::map<int, const Series*> behind;  // by rank
  std::optional<Finding> found;
  for (const Series& gradient : gradients) {
    const Series* last = std::exchange(behind[gradient.place.rank], &gradient);
    if (last == nullptr) continue;
    const auto departs = departure(gradient, *last, sign);
    if (!departs || (found && found->first <= departs->shift.first + 1)) continue;
    found = make_finding(facts, cause, sign, gradient, *last, *departs);
  }
  return found;
}

// Where the gradient's own past does not show it, or later, the ratio does.
std::vector<Finding> with_ratios(const Facts& facts, std::string_view cause, int sign) {
  std::vector<Finding> found = find(facts, cause, sign);
  auto ratio = against_the_layer_behind(facts, cause, sign);
  if (!ratio) return found;
  const auto is_as_early = [&](const Finding& each) { return each.first <= ratio->first + 1; };
  if (std::ranges::any_of(found, is_as_early)) return found;
  found.push_back(std::move(*ratio));
  return found;
}

std::vector<Finding> exploding(const Facts& facts) {
  return with_ratios(facts, "exploding_gradients", 1);
}
std::vector<Finding> vanishing(const Facts& facts) {
  return with_ratios(facts, "vanishing_gradients", -1);
}

}  // namespace

Rule exploding_gradients() {
  return {
      .cause = "exploding_gradients",
      .title = "gradients that explode from a layer on",
      .doc =
          "The gradient of a layer grows 8 times and more within an iteration and stays "
          "there for 8 and more; of several the one nearest to the loss is the origin, since the "
          "backward pass comes from there. So is one that grows 8 times against that of the layer "
          "behind it, or 32 times within 16 iterations.",
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
  return {
      .cause = "vanishing_gradients",
      .title = "gradients that vanish from a layer on",
      .doc =
          "The gradient of a layer falls to an eighth and less, or to zero, within an "
          "iteration and stays there; of several the one nearest to the loss is the origin. So is "
          "one that falls so step by step against that of the layer behind it.",
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

}  // namespace telens::analysis
