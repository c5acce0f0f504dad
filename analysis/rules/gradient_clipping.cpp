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

constexpr double kClipped = 0.99;  // a factor below it was clipped
constexpr std::size_t kLeastReads = 3;
constexpr double kConstant = 0.03;  // bits between the largest and the smallest
constexpr double kVaries = 0.2;     // bits, of norms that show which power was divided by

// A clipped step: norms before and after clipping, without the loss scale.
struct Read {
  std::int64_t iteration = 0;
  double before = 0;
  double after = 0;
  double scale = 1;
};

std::vector<Read> clipped_reads(const Facts& facts) {
  std::vector<Read> reads;
  const auto norms = scalars_named(facts, "grad_norm");
  if (norms.size() != 1) return reads;
  const Scalars* scales = scalar_beside(facts, *norms.front(), "loss_scale");
  for (const ReceivedGradients& step : received_gradients(facts)) {
    const auto after = value_at(*norms.front(), step.iteration);
    const double scale = scales != nullptr ? value_at(*scales, step.iteration).value_or(1) : 1;
    const double factor = step.common * scale;
    if (!after || !(*after > 0) || !(factor > 0) || factor > kClipped) continue;
    reads.push_back({step.iteration, *after / factor, *after, scale});
  }
  return reads;
}

template <typename Size>
double range(const std::vector<Read>& reads, Size size) {
  const auto [least, most] =
      std::ranges::minmax(reads, {}, [&](const Read& read) { return bits(size(read)); });
  return bits(size(most)) - bits(size(least));
}

Finding gradient_clipping_finding(const Facts& facts, const Read& read, std::string summary,
                                  std::string next) {
  return {.cause = "gradient_clipping",
          .place = {},
          .first = read.iteration,
          .last = facts.last_iteration(),
          .confidence = kProbable,
          .summary = std::move(summary),
          .evidence = {{"gradient norm", {}, read.iteration, read.before, "before clipping"},
                       {"gradient norm", {}, read.iteration, read.after, "after clipping"}},
          .next_step = std::move(next)};
}

std::vector<Finding> find_gradient_clipping(const Facts& facts) {
  const std::vector<Read> reads = clipped_reads(facts);
  if (reads.size() < kLeastReads) return {};
  const Read& first = reads.front();
  // Clipping by the norm gives one norm, the limit. Dividing by its square gives limit / norm.
  const double of_result = range(reads, [](const Read& read) { return read.after; });
  const double of_product = range(reads, [](const Read& read) { return read.after * read.before; });
  if (of_product <= kConstant && of_result >= kVaries) {
    return {gradient_clipping_finding(
        facts, first,
        fmt::format("gradients are divided by the square of their norm: norms before and after "
                    "clipping have the constant product {:.3g}",
                    first.after * first.before),
        "divide by the norm, not by its square: multiply by max_norm / norm if norm > max_norm")};
  }
  // A limit that was applied to gradients with a loss scale is one after multiplying it in again.
  constexpr double kLeastScale = 256;
  constexpr double kLeastLimit = 0.01;
  constexpr double kMostLimit = 100;
  const double limit = first.after * first.scale;
  const double of_scaled = range(reads, [](const Read& read) { return read.after * read.scale; });
  if (first.scale >= kLeastScale && of_scaled <= kConstant && limit >= kLeastLimit &&
      limit <= kMostLimit) {
    return {gradient_clipping_finding(
        facts, first,
        fmt::format("gradients are clipped while they have the loss scale {:.4g}: their norm is "
                    "{:.3g} in each step, which is {:.3g} with the scale",
                    first.scale, first.after, limit),
        "call scaler.unscale_(optimizer) before torch.nn.utils.clip_grad_norm_")};
  }
  return {};
}

}  // namespace

Rule gradient_clipping() {
  return {
      .cause = "gradient_clipping",
      .title = "gradients clipped to a wrong norm",
      .doc =
          "In each of at least 3 measured steps the gradients are clipped, and the product of the "
          "norms before and after clipping is constant, as if they were divided by the square of "
          "the norm; or the norm after clipping is constant and is a usual limit only if the loss "
          "scale is multiplied in. Strong clipping by itself is not reported. Visible from the "
          "first steps on.",
      .stage = Stage::setup,
      .required = {"accumulated_mean", "mean"},
      .optional = {"accumulated_norm", "numel", "l2_norm", "std"},
      .needs_optimizer = true,
      .recorded_by = "telens.watch",
      .alternatives = "A limit that follows the norm on purpose.",
      .next_step = "print the norm that clip_grad_norm_ returns, and the norm after it",
      .find = find_gradient_clipping};
}

}  // namespace telens::analysis
