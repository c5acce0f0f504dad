#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "analysis/baseline.h"
#include "analysis/rules/received_gradients.h"
#include "analysis/rules/rules.h"
#include "analysis/rules/scalar_reads.h"

namespace telens::analysis {
namespace {

constexpr double kMaxClipFactor = 0.99;  // a gradient with a larger factor was not clipped
constexpr std::size_t kMinClippedSteps = 3;
constexpr double kMaxConstantRange = 0.03;  // bits; values that vary less are constant
constexpr double kMinVaryingRange = 0.2;    // bits; norms that vary less do not show the exponent

// The gradient norms of a clipped step, without the loss scale.
struct ClippedStep {
  std::int64_t iteration = 0;
  double before = 0;
  double after = 0;
  double scale = 1;
};

std::vector<ClippedStep> list_clipped_steps(const Facts& facts) {
  std::vector<ClippedStep> steps;
  const auto norms = scalars_named(facts, "grad_norm");
  if (norms.size() != 1) return steps;
  const Scalars* scales = scalar_beside(facts, *norms.front(), "loss_scale");
  for (const ReceivedGradients& gradients : received_gradients(facts)) {
    const auto after = value_at(*norms.front(), gradients.iteration);
    const double scale = scales != nullptr ? value_at(*scales, gradients.iteration).value_or(1) : 1;
    const double factor = gradients.common * scale;
    if (!after || !(*after > 0) || !(factor > 0) || factor > kMaxClipFactor) continue;
    steps.push_back({gradients.iteration, *after / factor, *after, scale});
  }
  return steps;
}

template <typename Size>
double get_range(const std::vector<ClippedStep>& steps, Size size) {
  const auto [least, most] =
      std::ranges::minmax(steps, {}, [&](const ClippedStep& step) { return bits(size(step)); });
  return bits(size(most)) - bits(size(least));
}

Finding gradient_clipping_finding(const Facts& facts, const ClippedStep& step, std::string summary,
                                  std::string next) {
  return {.cause = "gradient_clipping",
          .place = {},
          .first = step.iteration,
          .last = facts.last_iteration(),
          .confidence = kProbable,
          .summary = std::move(summary),
          .evidence = {{"gradient norm", {}, step.iteration, step.before, "before clipping"},
                       {"gradient norm", {}, step.iteration, step.after, "after clipping"}},
          .next_step = std::move(next)};
}

std::vector<Finding> find_gradient_clipping(const Facts& facts) {
  const std::vector<ClippedStep> steps = list_clipped_steps(facts);
  if (steps.size() < kMinClippedSteps) return {};
  const ClippedStep& first = steps.front();
  // Division by the norm makes every clipped norm equal to the limit. Division by the squared norm
  // makes it limit / norm, so the product of both norms is the limit.
  const double after_range = get_range(steps, [](const ClippedStep& step) { return step.after; });
  const double product_range =
      get_range(steps, [](const ClippedStep& step) { return step.after * step.before; });
  if (product_range <= kMaxConstantRange && after_range >= kMinVaryingRange) {
    return {gradient_clipping_finding(
        facts, first,
        fmt::format("gradients are divided by the square of their norm: the product of the norms "
                    "before and after clipping is constant at {:.3g}",
                    first.after * first.before),
        "divide by the norm, not by its square: multiply by max_norm / norm if norm > max_norm")};
  }
  // If gradients were clipped before unscaling, the clipped norm times the loss scale is a usual
  // limit.
  constexpr double kMinLossScale = 256;
  constexpr double kMinLimit = 0.01;
  constexpr double kMaxLimit = 100;
  const double limit = first.after * first.scale;
  const double scaled_range =
      get_range(steps, [](const ClippedStep& step) { return step.after * step.scale; });
  if (first.scale >= kMinLossScale && scaled_range <= kMaxConstantRange && limit >= kMinLimit &&
      limit <= kMaxLimit) {
    return {gradient_clipping_finding(
        facts, first,
        fmt::format("gradients are clipped before the loss scale of {:.4g} is removed: their norm "
                    "is {:.3g} in each step, or {:.3g} including the scale",
                    first.scale, first.after, limit),
        "call scaler.unscale_(optimizer) before torch.nn.utils.clip_grad_norm_")};
  }
  return {};
}

}  // namespace

Rule gradient_clipping() {
  return {.cause = "gradient_clipping",
          .title = "gradients clipped to the wrong norm",
          .doc =
              "In each of at least 3 measured steps the gradients are clipped, and the product of "
              "the norms before and after clipping is constant, as if they were divided by the "
              "square of the norm; or the norm after clipping is constant and is a usual limit "
              "only when multiplied by the loss scale. Strong clipping by itself is not reported. "
              "Visible from the first steps on.",
          .stage = Stage::setup,
          .required = {"accumulated_mean", "mean"},
          .optional = {"accumulated_norm", "numel", "l2_norm", "std"},
          .needs_optimizer = true,
          .recorded_by = "telens.watch",
          .alternatives = "A clipping limit that follows the norm on purpose.",
          .next_step = "print the norm that clip_grad_norm_ returns, and the norm after clipping",
          .find = find_gradient_clipping};
}

}  // namespace telens::analysis
