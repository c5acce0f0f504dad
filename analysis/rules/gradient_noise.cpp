#include <fmt/format.h>

#include <cmath>
#include <numbers>
#include <optional>
#include <vector>

#include "analysis/baseline.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

// Noise over gradient. Low precision slows the training down if a gradient is smaller than sqrt(3)
// times the noise of its cast (arXiv 2505.19115).
constexpr double kMinNoise = 1 / std::numbers::sqrt3;
constexpr std::size_t kMinNoisyReads = 6;  // consecutive reads

std::optional<Finding> find_noise(const Facts& facts, const Series& mse) {
  std::vector<Point> noisy;  // consecutive reads with their noise over gradient
  std::optional<Finding> found;
  for (const auto& [iteration, value] : mse.points) {
    const auto size = root_mean_square(facts, mse.place, iteration);
    const bool known = size && *size > 0 && std::isfinite(*size) && value >= 0;
    const double noise = known ? std::sqrt(value) / *size : 0;
    if (!(noise > kMinNoise)) {
      noisy.clear();
      continue;
    }
    noisy.push_back({iteration, noise});
    if (noisy.size() < kMinNoisyReads) continue;
    if (found) {
      found->last = iteration;
      continue;
    }
    const Point& first = noisy.front();
    found = Finding{.cause = "gradient_noise",
                    .place = mse.place,
                    .first = first.iteration,
                    .last = iteration,
                    .confidence = kProbable,
                    .summary = fmt::format("the quantization noise is {:.0f} % of the gradient; "
                                           "above {:.0f} %, low precision slows the training down",
                                           100 * first.value, 100 * kMinNoise),
                    .evidence = {{"sqrt(mse) / root mean square", mse.place, first.iteration,
                                  first.value, ""}}};
  }
  return found;
}

std::vector<Finding> find_gradient_noise(const Facts& facts) {
  std::vector<Finding> found;
  for (const Series* mse : facts.with("mse")) {
    if (mse->place.tensor != TensorName::gradient) continue;
    if (auto finding = find_noise(facts, *mse)) found.push_back(std::move(*finding));
  }
  return found;
}

}  // namespace

Rule gradient_noise() {
  return {
      .cause = "gradient_noise",
      .title = "gradient lost in quantization noise",
      .doc =
          "In 6 consecutive reads, the root mean square error of a gradient's cast is at least 58 "
          "% (1 / sqrt(3)) of the gradient. Above this limit, low precision slows the training "
          "down (arXiv 2505.19115). Typical values are 3 to 10 % for FP8 and 10 to 25 % for FP4.",
      .stage = Stage::cast,
      .required = {"mse", kSizes},
      .optional = {"numel", "mean"},
      .recorded_by =
          "LogFp8TensorStats of gradients (mse), or the same statistic of another format, with "
          "LogTensorStats (l2_norm and numel, or std and mean)",
      .alternatives = "A wrong or stale scale (ScaleHealth shows it); outliers.",
      .next_step =
          "use DisableFP8GEMM for dgrad and wgrad of '{layer}' in the last part of the training, "
          "or stochastic rounding; telens stats RUN --layer '{layer}' --tensor gradient --stat mse "
          "--stat underflows%",
      .find = find_gradient_noise};
}

}  // namespace telens::analysis
