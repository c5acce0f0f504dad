#include <fmt/format.h>

#include <cmath>
#include <numbers>
#include <optional>
#include <vector>

#include "analysis/rules/rules.h"
#include "analysis/sizes.h"

namespace telens::analysis {
namespace {

// Training in low precision stops to pay where a gradient is smaller than sqrt(3) times the noise
// of its cast (arXiv 2505.19115).
constexpr double kLeast = 1 / std::numbers::sqrt3;  // noise over gradient
constexpr std::size_t kPersistent = 6;              // reads on end

std::optional<Finding> in_gradient(const Facts& facts, const Series& mse) {
  std::vector<Point> loud;  // on end, noise over gradient
  std::optional<Finding> found;
  for (const auto& [iteration, value] : mse.points) {
    const auto size = root_mean_square(facts, mse.place, iteration);
    const bool known = size && *size > 0 && std::isfinite(*size) && value >= 0;
    const double noise = known ? std::sqrt(value) / *size : 0;
    if (!(noise > kLeast)) {
      loud.clear();
      continue;
    }
    loud.push_back({iteration, noise});
    if (loud.size() < kPersistent) continue;
    if (found) {
      found->last = iteration;
      continue;
    }
    const Point& first = loud.front();
    found = Finding{
        .cause = "gradient_noise",
        .place = mse.place,
        .first = first.iteration,
        .last = iteration,
        .confidence = kProbable,
        .summary = fmt::format("the noise of the cast is {:.0f} % of the gradient, more than "
                               "the {:.0f} % from which on a step learns little of it",
                               100 * first.value, 100 * kLeast),
        .evidence = {
            {"sqrt(mse) / root mean square", mse.place, first.iteration, first.value, ""}}};
  }
  return found;
}

std::vector<Finding> find(const Facts& facts) {
  std::vector<Finding> found;
  for (const Series* mse : facts.with("mse")) {
    if (mse->place.tensor != TensorName::gradient) continue;
    if (auto finding = in_gradient(facts, *mse)) found.push_back(std::move(*finding));
  }
  return found;
}

}  // namespace

Rule gradient_noise() {
  return {
      .cause = "gradient_noise",
      .title = "a gradient that drowns in the noise of its cast",
      .doc =
          "The error of a gradient's cast, as its root mean square, is 58 % (1 / sqrt(3)) of "
          "the gradient and more in 6 reads on end: from there on low precision holds the "
          "training back (arXiv 2505.19115). FP8 has 3 to 10 %, FP4 10 to 25 %.",
      .stage = Stage::cast,
      .required = {"mse", kSizes},
      .optional = {"numel", "mean"},
      .recorded_by =
          "LogFp8TensorStats of gradients (mse), or that of another format, with LogTensorStats "
          "(l2_norm and numel, or std and mean)",
      .alternatives = "A scale that is wrong or stale (ScaleHealth tells), or outliers.",
      .next_step =
          "DisableFP8GEMM for dgrad and wgrad of '{layer}' in the last part of the training, "
          "or stochastic rounding; telens stats RUN --layer '{layer}' --tensor gradient --stat "
          "mse --stat underflows%",
      .find = find};
}

}  // namespace telens::analysis
