#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/baseline.h"
#include "analysis/rules/norm_gains.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

constexpr double kMaxPastRatio = 0.5;   // |mean| / std before the drift
constexpr double kMinDriftedRatio = 2;  // |mean| / std after the drift
constexpr std::size_t kMinPastPoints = 5;
constexpr std::size_t kMaxDriftPoints = 16;   // from the past range to kMinDriftedRatio
constexpr std::size_t kMinDriftedPoints = 3;  // consecutive
// The drift begins if the ratio exceeds the largest past ratio by both.
constexpr double kDepartureFactor = 1.25;
constexpr double kMinDeparture = 0.1;

Series get_mean_ratios(const Series& mean, const Series& deviation) {
  Series series{.place = mean.place};
  for (const auto& [iteration, value] : mean.points) {
    const auto std_now = deviation.at(iteration);
    if (!std_now || !(*std_now > 0) || !std::isfinite(value) || !std::isfinite(*std_now)) continue;
    series.points.push_back({iteration, std::abs(value) / *std_now});
  }
  return series;
}

struct Drift {
  Point first;    // above the past range
  Point reached;  // at least kMinDriftedRatio
  double usual = 0;
};

std::optional<Drift> first_drift(const std::vector<Point>& points) {
  const auto is_far = [](const Point& point) { return point.value >= kMinDriftedRatio; };
  const auto far = std::ranges::find_if(points, is_far);
  if (far == points.end()) return std::nullopt;
  const auto rest = static_cast<std::size_t>(points.end() - far);
  if (rest < kMinDriftedPoints || !std::all_of(far, far + kMinDriftedPoints, is_far))
    return std::nullopt;
  const auto reached = static_cast<std::size_t>(far - points.begin());
  // Find the point at which the ratio left its past range.
  for (std::size_t first = reached > kMaxDriftPoints ? reached - kMaxDriftPoints : 0;
       first <= reached; ++first) {
    if (first < kMinPastPoints) continue;
    std::vector<double> past;
    for (std::size_t i = first - kMinPastPoints; i < first; ++i) past.push_back(points[i].value);
    const double largest = *std::ranges::max_element(past);
    if (largest > kMaxPastRatio) return std::nullopt;
    const double edge = std::max(kDepartureFactor * largest, largest + kMinDeparture);
    const auto leaves = [&](const Point& point) { return point.value > edge; };
    if (std::all_of(points.begin() + static_cast<std::ptrdiff_t>(first), far, leaves) &&
        leaves(points[first])) {
      return Drift{points[first], *far, median(std::move(past))};
    }
  }
  return std::nullopt;
}

// Softmax ignores the mean of a router's logits.
bool is_router(std::string_view layer) {
  const std::string_view name = layer.substr(layer.rfind('.') + 1);
  return name == "router" || name == "gate";
}

// Gains that are stored as their difference from 1 begin near zero and may take any mean.
bool may_have_any_mean(const Facts& facts, const Place& place) {
  const std::string layer = facts.layer_name(place.layer);
  return place.tensor == TensorName::weight
             ? is_norm(layer)
             : place.tensor == TensorName::output && is_router(layer);
}

std::vector<Finding> find_drifting_mean(const Facts& facts) {
  std::vector<Finding> found;
  for (const Series* mean : facts.with("mean")) {
    const auto tensor = mean->place.tensor;
    if (tensor != TensorName::activation && tensor != TensorName::weight &&
        tensor != TensorName::output) {
      continue;
    }
    if (may_have_any_mean(facts, mean->place)) continue;
    const Series* deviation = facts.beside(*mean, "std");
    if (deviation == nullptr) continue;
    const auto drift = first_drift(get_mean_ratios(*mean, *deviation).points);
    if (!drift) continue;
    found.push_back(
        {.cause = "drifting_mean",
         .place = mean->place,
         .first = drift->first.iteration,
         .last = facts.last_iteration(),
         .confidence = kProbable,
         .summary =
             fmt::format("the mean drifts to {:.3g} standard deviations from zero (before: {:.2g})",
                         drift->reached.value, drift->usual),
         .evidence = {
             {"|mean| / std", mean->place, drift->reached.iteration, drift->reached.value, ""},
             {"|mean| / std", mean->place, drift->first.iteration - 1, drift->usual, "usual"}}});
  }
  return found;
}

}  // namespace

Rule drifting_mean() {
  return {
      .cause = "drifting_mean",
      .title = "mean or bias drifting away from zero",
      .doc =
          "The mean of an activation, output or weight was within half a standard deviation of "
          "zero. Within 16 iterations it reaches 2 standard deviations or more and stays there for "
          "at least 3 iterations. A format without an offset then spends its range on the mean. "
          "Not reported: tensors whose mean is nonzero from the start, such as ReLU outputs, gains "
          "of norms, and outputs of routers.",
      .stage = Stage::values,
      .required = {"mean", "std"},
      .recorded_by = "LogTensorStats (mean, std)",
      .alternatives = "Different data from this iteration on; a bias without weight decay.",
      .next_step = "telens plot RUN --layer '{layer}' --stat mean --stat std",
      .find = find_drifting_mean};
}

}  // namespace telens::analysis
