#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "analysis/baseline.h"
#include "analysis/rules/rules.h"
#include "analysis/rules/scalar_reads.h"

namespace telens::analysis {
namespace {

// Returns true if the gradient of the next layer shows most of the change, which then comes from
// that layer.
bool comes_from_next_layer(const PlaceShift& change, const std::vector<Series>& gradients) {
  constexpr double kMinSharedChange = 0.6;
  const Series* next_layer = nullptr;  // of the same rank; gradients are in backward order
  for (const Series& each : gradients) {
    if (each.place == change.place) break;
    if (each.place.rank == change.place.rank) next_layer = &each;
  }
  if (next_layer == nullptr) return false;
  return settled_bits(*next_layer, change.shift) / change.settled_bits >= kMinSharedChange;
}

// Returns true if the layer receives another share of the tokens in each iteration, as an expert
// does: the number of elements varies and is not proportional to that of `reference`.
bool has_varying_share(const Facts& facts, const Place& place, const Place& reference) {
  const Series* elements = facts.find(place, "numel");
  const Series* all = facts.find(reference, "numel");
  if (elements == nullptr || all == nullptr) return false;
  std::optional<double> share;
  for (const auto& [iteration, count] : elements->points) {
    const auto of_all = all->at(iteration);
    if (!of_all || !(*of_all > 0)) continue;
    if (count / *of_all != share.value_or(count / *of_all)) return true;
    share = count / *of_all;
  }
  return false;
}

// Returns the sizes of gradients in training order. Excludes experts, and the iterations in which
// the loss is exactly 0 because no label counts.
std::vector<Series> get_gradients(const Facts& facts) {
  std::vector<Series> gradients = root_mean_squares(facts, TensorName::gradient);
  std::map<int, Place> references;  // by rank: the gradient nearest to the loss
  for (const Series& each : gradients) references.try_emplace(each.place.rank, each.place);
  std::erase_if(gradients, [&](const Series& each) {
    return has_varying_share(facts, each.place, references.at(each.place.rank));
  });
  std::map<int, std::set<std::int64_t>> empty;  // iterations, by rank
  for (const Scalars* losses : scalars_named(facts, "loss")) {
    for (const Point& point : losses->points) {
      if (point.value == 0) empty[losses->rank].insert(point.iteration);
    }
  }
  for (Series& each : gradients) {
    const std::set<std::int64_t>& skipped = empty[each.place.rank];
    std::erase_if(each.points,
                  [&](const Point& point) { return skipped.contains(point.iteration); });
  }
  std::erase_if(gradients, [](const Series& each) { return each.points.empty(); });
  return gradients;
}

using Inputs = std::map<std::pair<int, std::int32_t>, Series>;  // key: rank and layer

Inputs get_inputs(const Facts& facts) {
  Inputs inputs;
  for (Series& each : root_mean_squares(facts, TensorName::activation)) {
    const std::pair key(each.place.rank, each.place.layer);
    inputs.try_emplace(key, std::move(each));
  }
  return inputs;
}

// Returns true if both layers read the same tensor, as projections to queries and keys do.
bool read_same_input(const Inputs& inputs, const Place& a, const Place& b) {
  const auto first = inputs.find({a.rank, a.layer});
  const auto second = inputs.find({b.rank, b.layer});
  if (first == inputs.end() || second == inputs.end()) return false;
  return std::ranges::equal(
      first->second.points, second->second.points, [](const Point& x, const Point& y) {
        const bool equal = x.value == y.value || (std::isnan(x.value) && std::isnan(y.value));
        return x.iteration == y.iteration && equal;
      });
}

// Returns true if the layer shares its input with another layer and its gradient falls by less than
// a factor of 64: while attention learns, gradients of queries and keys may fall to a twentieth.
bool may_fall(const PlaceShift& change, const std::vector<Series>& gradients,
              const Inputs& inputs) {
  constexpr double kMaxBits = 6;
  if (change.shift.bits > 0 || -change.shift.bits >= kMaxBits) return false;
  return std::ranges::any_of(gradients, [&](const Series& each) {
    return each.place.rank == change.place.rank && each.place.layer != change.place.layer &&
           read_same_input(inputs, each.place, change.place);
  });
}

std::vector<Finding> find_gradient_shifts(const Facts& facts, std::string_view cause, int sign) {
  const std::vector<Series> gradients = get_gradients(facts);
  const Inputs inputs = get_inputs(facts);
  std::vector<Finding> found;
  for (const auto& group : shifts_together(gradients, sign, kGradientShift)) {
    if (comes_from_loss(group, gradients)) continue;
    const auto first = std::ranges::find_if_not(group, [&](const PlaceShift& each) {
      return comes_from_next_layer(each, gradients) || may_fall(each, gradients, inputs);
    });
    if (first == group.end()) continue;
    const PlaceShift& origin = *first;
    found.push_back({.cause = cause,
                     .place = origin.place,
                     .first = origin.shift.first,
                     .last = origin.shift.last,
                     .confidence = kProbable,
                     .summary = fmt::format("the gradient is {:.3g} times {} than before{}",
                                            std::exp2(std::abs(origin.shift.bits)),
                                            sign > 0 ? "larger" : "smaller",
                                            and_others(group.size() - 1, "layer")),
                     .evidence = {{"root mean square", origin.place, origin.shift.first,
                                   origin.shift.value, ""},
                                  {"root mean square", origin.place, origin.shift.first - 1,
                                   origin.shift.usual, "usual"}}});
  }
  return found;
}

// The ratio of a layer's gradient to the next layer's gradient cancels changes that all gradients
// share. In healthy runs the ratio stays within 1.8 bits of its past.
constexpr RampOptions kRatioRamp{.least_bits = 5, .steady = 1.4, .least_past = 10, .back = 0.8};
// Minimum change of the gradient itself, in bits: a ratio also changes if only the next layer's
// gradient does.
constexpr double kMinOwnBits = 1.5;
constexpr double kMinOwnRampBits = 3;

Series get_gradient_ratios(const Series& gradient, const Series& next_layer) {
  Series series{.place = gradient.place};
  for (const auto& [iteration, size] : gradient.points) {
    const auto other = next_layer.at(iteration);
    if (!other || !(*other > 0) || !(size > 0)) continue;
    series.points.push_back({iteration, size / *other});
  }
  return series;
}

// Returns the change of the gradient in bits, from the last point before the ramp to its end.
double get_own_bits(const Series& gradient, const Shift& ramp) {
  const Point* before = gradient.before(ramp.first);
  const Point* after = gradient.before(ramp.last + 1);
  return before == nullptr || after == nullptr ? 0 : bits(after->value) - bits(before->value);
}

struct Departure {
  Shift shift;
  bool gradual = false;
};

// Returns the first departure of the ratio from its past: a jump, or a change by a factor in each
// iteration. Returns the earlier one if both exist, because a noisy batch can make a step of growth
// look like a jump.
std::optional<Departure> find_departure(const Series& gradient, const Series& next_layer,
                                        int sign) {
  const Series ratio = get_gradient_ratios(gradient, next_layer);
  auto shift = first_shift(ratio.points, kGradientShift);
  if (shift && (sign * shift->bits <= 0 || sign * settled_bits(gradient, *shift) <= kMinOwnBits)) {
    shift.reset();
  }
  const auto ramp = first_ramp(ratio.points, sign, kRatioRamp);
  if (ramp && sign * get_own_bits(gradient, *ramp) > kMinOwnRampBits &&
      (!shift || ramp->first < shift->first)) {
    return Departure{*ramp, true};
  }
  return shift ? std::optional(Departure{*shift}) : std::nullopt;
}

Finding make_ratio_finding(const Facts& facts, std::string_view cause, int sign,
                           const Series& gradient, const Series& next_layer,
                           const Departure& departure) {
  const Shift& shift = departure.shift;
  return {.cause = cause,
          .place = gradient.place,
          .first = shift.first,
          .last = shift.last,
          .confidence = kProbable,
          .summary = fmt::format("the gradient {}{}, relative to the gradient of {}",
                                 sign > 0 ? "grows" : "shrinks",
                                 departure.gradual ? " in each iteration" : "",
                                 facts.layer_name(next_layer.place.layer)),
          .evidence = {{"ratio of root mean squares", gradient.place, shift.first - 1, shift.usual,
                        "usual"},
                       {"ratio of root mean squares", gradient.place, shift.last, shift.value, ""}},
          .gradual = departure.gradual};
}

// Returns the earliest departure as a finding. Of departures within one iteration of each other,
// returns the layer nearest to the loss.
std::optional<Finding> compare_with_next_layer(const Facts& facts, std::string_view cause,
                                               int sign) {
  const std::vector<Series> gradients = get_gradients(facts);
  const Inputs inputs = get_inputs(facts);
  std::map<int, const Series*> next_layer;  // by rank
  std::optional<Finding> found;
  for (const Series& gradient : gradients) {
    const Series*& next = next_layer[gradient.place.rank];
    // Parallel layers are not consecutive, and queries and keys learn at different speeds.
    if (next != nullptr && read_same_input(inputs, gradient.place, next->place)) continue;
    const Series* last = std::exchange(next, &gradient);
    if (last == nullptr) continue;
    const auto departure = find_departure(gradient, *last, sign);
    if (!departure || (found && found->first <= departure->shift.first + 1)) continue;
    found = make_ratio_finding(facts, cause, sign, gradient, *last, *departure);
  }
  return found;
}

// Adds the finding by ratio if no shift of a gradient is as early. Ratios show changes that the
// gradient's own past does not show or shows later.
std::vector<Finding> find_with_ratios(const Facts& facts, std::string_view cause, int sign) {
  std::vector<Finding> found = find_gradient_shifts(facts, cause, sign);
  auto ratio = compare_with_next_layer(facts, cause, sign);
  if (!ratio) return found;
  const auto is_as_early = [&](const Finding& each) { return each.first <= ratio->first + 1; };
  if (std::ranges::any_of(found, is_as_early)) return found;
  found.push_back(std::move(*ratio));
  return found;
}

std::vector<Finding> find_exploding(const Facts& facts) {
  return find_with_ratios(facts, "exploding_gradients", 1);
}
std::vector<Finding> find_vanishing(const Facts& facts) {
  return find_with_ratios(facts, "vanishing_gradients", -1);
}

}  // namespace

Rule exploding_gradients() {
  return {
      .cause = "exploding_gradients",
      .title = "exploding gradients",
      .doc =
          "The gradient of a layer grows by a factor of 8 or more within one iteration and stays "
          "there for at least 8 iterations, grows by a factor of 8 relative to the next layer, or "
          "grows by a factor of 32 within 16 iterations. If several layers qualify, the layer "
          "nearest to the loss is the origin because the backward pass starts there.",
      .stage = Stage::propagation,
      .required = {kSizes},
      .optional = {"numel", "mean"},
      .recorded_by = "LogTensorStats of gradients (l2_norm and numel, or std and mean)",
      .alternatives = "If the loss gradient is already this large: the data or the loss function.",
      .next_step =
          "telens plot RUN --tensor gradient --stat l2_norm; check the operations between "
          "'{layer}' and the next layer",
      .find = find_exploding};
}

Rule vanishing_gradients() {
  return {.cause = "vanishing_gradients",
          .title = "vanishing gradients",
          .doc =
              "The gradient of a layer falls to an eighth or less, or to zero, within one "
              "iteration and stays there, or it falls step by step relative to the next layer. If "
              "several layers qualify, the layer nearest to the loss is the origin. Not reported: "
              "experts, batches without labels, and a fall by less than a factor of 64 in layers "
              "that share their input, such as projections to queries and keys.",
          .stage = Stage::propagation,
          .required = {kSizes},
          .optional = {"numel", "mean"},
          .recorded_by = "LogTensorStats of gradients (l2_norm and numel, or std and mean)",
          .alternatives = "A part of the model that was frozen or detached.",
          .next_step =
              "telens plot RUN --tensor gradient --stat l2_norm; check the operations between "
              "'{layer}' and the next layer",
          .find = find_vanishing};
}

}  // namespace telens::analysis
