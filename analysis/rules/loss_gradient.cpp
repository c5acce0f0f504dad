#include "analysis/rules/loss_gradient.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "analysis/rules/rules.h"
#include "analysis/rules/scalar_reads.h"
#include "analysis/sizes.h"

namespace telens::analysis {
namespace {

constexpr double kMostDeviation = 1.5;  // of logits, of which each class has nearly the same chance
constexpr double kLeastClasses = 8;
constexpr double kNearly = 0.1;         // part of a number of micro-batches
constexpr double kNearlyClasses = 0.4;  // part of the number of classes

// At uniform logits the gradient of a mean cross entropy has -(1 - 1/V) / T at the label of each of
// the T tokens and 1 / (V T) at the other classes. So its smallest element shows by how many tokens
// the loss was divided, and its squared norm, T_labeled (1 - 1/V) / T^2, how many tokens have a
// label. The ratio of both numbers, squared norm / |smallest|, is 1 for the mean over all tokens.
struct LossGradient {
  double ratio = 0;
  double classes = 0;
  double passes = 0;  // backward passes in the iteration
};

std::optional<LossGradient> read(const Facts& facts, const Place& gradient,
                                 std::int64_t iteration) {
  const auto value = [&](TensorName tensor, std::string_view statistic) -> double {
    Place place = gradient;
    place.tensor = tensor;
    const Series* series = facts.find(place, statistic);
    return series != nullptr ? series->at(iteration).value_or(NAN) : NAN;
  };
  const double least = value(TensorName::gradient, "min");
  const double most = value(TensorName::gradient, "max");
  const double norm = value(TensorName::gradient, "l2_norm");
  const double mean = value(TensorName::gradient, "mean");
  const double elements = value(TensorName::gradient, "numel");
  const double weights = value(TensorName::weight, "numel");
  // V^2: weights are V d, results rows V and inputs rows d.
  const double classes = std::sqrt(weights * value(TensorName::output, "numel") /
                                   value(TensorName::activation, "numel"));
  constexpr double kSumsToZero = 1e-3;  // of the root mean square
  constexpr double kLabelStandsOut = 3;
  const bool is_cross_entropy = least < 0 && -least > kLabelStandsOut * most &&
                                classes >= kLeastClasses &&
                                std::abs(mean) < kSumsToZero * norm / std::sqrt(elements) &&
                                value(TensorName::output, "std") < kMostDeviation;
  if (!is_cross_entropy) return std::nullopt;
  const auto scales = scalars_named(facts, "loss_scale");
  const double scale = scales.empty() ? 1 : value_at(*scales.front(), iteration).value_or(NAN);
  return LossGradient{.ratio = norm * norm / -least / scale,
                      .classes = classes,
                      .passes = value(TensorName::wgrad, "numel") / weights};
}

bool is_nearly(double value, double expected, double part) {
  return std::abs(value / expected - 1) < part;
}

std::optional<std::string> explain(const LossGradient& found) {
  const bool accumulates = found.passes > 1 + kNearly;
  if (accumulates && is_nearly(found.ratio, found.passes, kNearly)) {
    return fmt::format(
        "the gradient of the logits is {:.3g} times the gradient of the mean loss over "
        "all tokens: the losses of {:.0f} micro-batches are added, not averaged",
        found.ratio, found.passes);
  }
  if (accumulates && is_nearly(found.ratio, 1 / found.passes, kNearly)) {
    return fmt::format(
        "the gradient of the logits is {:.3g} times the gradient of the mean loss over "
        "all tokens: it is divided by the {:.0f} micro-batches twice",
        found.ratio, found.passes);
  }
  if (is_nearly(found.ratio, 1 / found.classes, kNearlyClasses)) {
    return fmt::format(
        "the gradient of the logits is {:.3g} times the gradient of a cross entropy, about "
        "one over the number of classes: the softmax is applied twice",
        found.ratio);
  }
  return std::nullopt;
}

}  // namespace

std::optional<Finding> wrong_loss_gradient(const Facts& facts) {
  constexpr std::int64_t kBeginning = 2;  // iterations
  if (facts.ranks() > 1) return std::nullopt;
  const auto gradients = root_mean_squares(facts, TensorName::gradient);
  if (gradients.empty() || gradients.front().points.empty()) return std::nullopt;
  const Series& next_to_loss = gradients.front();
  const std::int64_t first = next_to_loss.points.front().iteration;
  if (first > facts.first_iteration() + kBeginning) return std::nullopt;
  const auto found = read(facts, next_to_loss.place, first);
  if (!found) return std::nullopt;
  auto summary = explain(*found);
  if (!summary) return std::nullopt;
  return Finding{.cause = "loss_scale",
                 .place = next_to_loss.place,
                 .first = first,
                 .last = facts.last_iteration(),
                 .confidence = kProbable,
                 .summary = std::move(*summary),
                 .evidence = {{"gradient / that of the mean loss", next_to_loss.place, first,
                               found->ratio, ""},
                              {"gradient / that of the mean loss", {}, first, 1, "expected"}},
                 .next_step =
                     "check the reduction of the loss: a mean over all labeled tokens of the "
                     "step, divided once, and logits (not probabilities) into cross_entropy"};
}

}  // namespace telens::analysis
