#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "analysis/baseline.h"
#include "analysis/facts.h"
#include "analysis/rule.h"
#include "analysis/rules/rules.h"
#include "analysis/rules/scalar_reads.h"

namespace telens::analysis {
namespace {

// Returns true if the loss exceeds each of the last 4 losses by 15 %: different data then explain
// the change of the gradients. A single previous loss is not sufficient, because batches differ.
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
      .summary = fmt::format("the gradients change by a factor of {:.3g}, starting at the recorded "
                             "layer next to the loss",
                             std::exp2(origin.settled_bits)),
      .evidence = {
          {"root mean square", origin.place, origin.shift.first, origin.shift.value, ""},
          {"root mean square", origin.place, origin.shift.first - 1, origin.shift.usual, "usual"}}};
}

// Returns false if the number of elements changes: the gradient of a mean depends on the batch
// size.
bool has_same_size(const Facts& facts, const Place& place, std::int64_t iteration) {
  const Series* count = facts.find(place, "numel");
  const Point* before = count != nullptr ? count->before(iteration) : nullptr;
  return before == nullptr || count->at(iteration).value_or(before->value) == before->value;
}

// Returns true if the gradient changes by the same factor (in bits), at once or up to 2 iterations
// later. With delayed scaling, the scales of the layers between it and the loss must grow first.
bool follows_factor(const Series& gradient, const Shift& shift, double factor) {
  constexpr double kMaxFactorError = 1;  // bits
  constexpr std::int64_t kMaxDelay = 2;
  for (std::int64_t delay = 0; delay <= kMaxDelay; ++delay) {
    if (std::abs(settled_bits(gradient, shift, delay) - factor) <= kMaxFactorError) return true;
  }
  return false;
}

// Detects one factor on all gradients, as a loss scale causes. The gradient next to the loss varies
// least and therefore shows smaller factors than other gradients. Most gradients must agree with
// it.
std::optional<Finding> find_common_factor(const Facts& facts,
                                          const std::vector<Series>& gradients) {
  constexpr ShiftOptions kFactorShift{.least_bits = 2.5, .sustained = 4, .passing = 8};
  constexpr double kMinAgreeing = 0.75;  // share of the other gradients
  if (gradients.empty()) return std::nullopt;
  const Series& next_to_loss = gradients.front();
  const auto shift = first_shift(next_to_loss.points, kFactorShift);
  if (!shift || !has_same_size(facts, next_to_loss.place, shift->first)) return std::nullopt;
  const double factor = settled_bits(next_to_loss, *shift);
  std::size_t others = 0;
  std::size_t agreeing = 0;
  for (const Series& each : gradients) {
    if (each.place.rank != next_to_loss.place.rank || &each == &next_to_loss) continue;
    ++others;
    if (follows_factor(each, *shift, factor)) ++agreeing;
  }
  if (others == 0 || static_cast<double>(agreeing) < kMinAgreeing * static_cast<double>(others)) {
    return std::nullopt;
  }
  return loss_scale_finding({next_to_loss.place, *shift, factor});
}

// Std of logits that give each class nearly the same probability.
constexpr double kMaxLogitDeviation = 1.5;
constexpr double kMinClasses = 8;
constexpr double kMicroBatchTolerance = 0.1;  // relative to the number of micro-batches
constexpr double kClassTolerance = 0.4;       // relative to the number of classes

// For uniform logits, the gradient of a mean cross entropy over T tokens and V classes is
// -(1 - 1/V) / T at the label of each token and 1 / (V T) at the other classes. Its smallest
// element shows by how many tokens the loss was divided, and its squared norm, T_labeled (1 - 1/V)
// / T^2, how many tokens have a label. `ratio`, squared norm / |smallest|, is 1 for the mean over
// all tokens.
struct LossGradient {
  double ratio = 0;
  double classes = 0;
  double passes = 0;  // backward passes in the iteration
};

std::optional<LossGradient> read_loss_gradient(const Facts& facts, const Place& gradient,
                                               std::int64_t iteration) {
  const auto value = [&](TensorName tensor, std::string_view statistic) -> double {
    Place place = gradient;
    place.tensor = tensor;
    const Series* series = facts.find(place, statistic);
    return series != nullptr ? series->at(iteration).value_or(NAN) : NAN;
  };
  const double smallest = value(TensorName::gradient, "min");
  const double largest = value(TensorName::gradient, "max");
  const double norm = value(TensorName::gradient, "l2_norm");
  const double mean = value(TensorName::gradient, "mean");
  const double elements = value(TensorName::gradient, "numel");
  const double weights = value(TensorName::weight, "numel");
  // The sizes are V d (weight), rows V (output) and rows d (input), so this is sqrt(V^2).
  const double classes = std::sqrt(weights * value(TensorName::output, "numel") /
                                   value(TensorName::activation, "numel"));
  constexpr double kMaxMean = 1e-3;        // |mean| relative to the root mean square
  constexpr double kMinLabelContrast = 3;  // |smallest| / largest element
  const bool is_cross_entropy = smallest < 0 && -smallest > kMinLabelContrast * largest &&
                                classes >= kMinClasses &&
                                std::abs(mean) < kMaxMean * norm / std::sqrt(elements) &&
                                value(TensorName::output, "std") < kMaxLogitDeviation;
  if (!is_cross_entropy) return std::nullopt;
  const auto scales = scalars_named(facts, "loss_scale");
  const double scale = scales.empty() ? 1 : value_at(*scales.front(), iteration).value_or(NAN);
  return LossGradient{.ratio = norm * norm / -smallest / scale,
                      .classes = classes,
                      .passes = value(TensorName::wgrad, "numel") / weights};
}

bool is_within(double value, double expected, double tolerance) {
  return std::abs(value / expected - 1) < tolerance;
}

std::optional<std::string> explain_loss_gradient(const LossGradient& found) {
  const bool accumulates = found.passes > 1 + kMicroBatchTolerance;
  if (accumulates && is_within(found.ratio, found.passes, kMicroBatchTolerance)) {
    return fmt::format(
        "the gradient of the logits is {:.3g} times the gradient of the mean loss over all tokens: "
        "the losses of {:.0f} micro-batches are added, not averaged",
        found.ratio, found.passes);
  }
  if (accumulates && is_within(found.ratio, 1 / found.passes, kMicroBatchTolerance)) {
    return fmt::format(
        "the gradient of the logits is {:.3g} times the gradient of the mean loss over all tokens: "
        "it is divided twice by the number of micro-batches ({:.0f})",
        found.ratio, found.passes);
  }
  if (is_within(found.ratio, 1 / found.classes, kClassTolerance)) {
    return fmt::format(
        "the gradient of the logits is {:.3g} times the gradient of a cross entropy, about one "
        "over the number of classes: the softmax is applied twice",
        found.ratio);
  }
  return std::nullopt;
}

// Detects a first gradient of the logits that differs from the gradient of the mean cross entropy
// over all tokens of the iteration: by a factor of the number of micro-batches, by its inverse, or
// by the inverse of the number of classes.
std::optional<Finding> find_wrong_loss_gradient(const Facts& facts) {
  constexpr std::int64_t kStartIterations = 2;  // after the start of the run
  if (facts.ranks() > 1) return std::nullopt;
  const auto gradients = root_mean_squares(facts, TensorName::gradient);
  if (gradients.empty() || gradients.front().points.empty()) return std::nullopt;
  const Series& next_to_loss = gradients.front();
  const std::int64_t first = next_to_loss.points.front().iteration;
  if (first > facts.first_iteration() + kStartIterations) return std::nullopt;
  const auto found = read_loss_gradient(facts, next_to_loss.place, first);
  if (!found) return std::nullopt;
  auto summary = explain_loss_gradient(*found);
  if (!summary) return std::nullopt;
  return Finding{
      .cause = "loss_scale",
      .place = next_to_loss.place,
      .first = first,
      .last = facts.last_iteration(),
      .confidence = kProbable,
      .summary = std::move(*summary),
      .evidence = {{"gradient / gradient of the mean loss", next_to_loss.place, first, found->ratio,
                    ""},
                   {"gradient / gradient of the mean loss", {}, first, 1, "expected"}},
      .next_step =
          "check the reduction of the loss: average over all labeled tokens of the step, divide "
          "only once, and pass logits (not probabilities) to cross_entropy"};
}

std::vector<Finding> find_loss_scale(const Facts& facts) {
  const std::vector<Series> gradients = root_mean_squares(facts, TensorName::gradient);
  std::vector<Finding> found;
  for (const int sign : {1, -1}) {
    for (const auto& group : shifts_together(gradients, sign, kGradientShift)) {
      if (!comes_from_loss(group, gradients)) continue;
      const PlaceShift& origin = group.front();
      if (loss_rises(facts, origin.shift.first)) continue;
      found.push_back(loss_scale_finding(origin));
    }
  }
  auto factor = find_common_factor(facts, gradients);
  const auto is_known = [&](const Finding& each) {
    return std::abs(each.first - factor->first) <= 1;
  };
  if (factor && !loss_rises(facts, factor->first) && std::ranges::none_of(found, is_known)) {
    found.push_back(std::move(*factor));
  }
  if (auto from_the_start = find_wrong_loss_gradient(facts))
    found.push_back(std::move(*from_the_start));
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
              "number of micro-batches, or smaller by the number of classes.",
          .stage = Stage::values,
          .required = {kSizes},
          .optional = {"numel", "mean", "min", "max", "std"},
          .recorded_by = "LogTensorStats of gradients (l2_norm and numel, or std and mean)",
          .alternatives =
              "A loss that is summed instead of averaged; a different number of micro-batches; an "
              "active loss scaler.",
          .next_step =
              "call debug.record(\"loss_scale\", ...) in the training loop; telens plot RUN "
              "--tensor gradient --stat l2_norm",
          .find = find_loss_scale};
}

}  // namespace telens::analysis
