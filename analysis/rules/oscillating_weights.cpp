#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "analysis/baseline.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

constexpr std::size_t kMinAlternations = 7;  // consecutive steps in alternating directions
constexpr double kTimesPastStep = 4;         // times the median past step
constexpr std::size_t kMinComparedSteps = 4;
constexpr std::size_t kMaxComparedSteps = 16;
constexpr double kMinRelativeStep = 1e-3;  // times the first standard deviation

// Returns the index of the first point of an oscillation: the statistic rises and falls in
// alternating steps that are larger than before.
std::optional<std::size_t> first_oscillation(const std::vector<Point>& points, double size) {
  std::vector<double> steps;
  for (std::size_t i = 1; i < points.size(); ++i) {
    steps.push_back(points[i].value - points[i - 1].value);
  }
  for (std::size_t i = kMinComparedSteps; i + kMinAlternations <= steps.size(); ++i) {
    std::vector<double> past;
    for (std::size_t j = i > kMaxComparedSteps ? i - kMaxComparedSteps : 0; j < i; ++j)
      past.push_back(std::abs(steps[j]));
    const double min_step =
        std::max(kMinRelativeStep * size, kTimesPastStep * median(std::move(past)));
    bool alternates = true;
    for (std::size_t j = i; j < i + kMinAlternations && alternates; ++j) {
      alternates = std::abs(steps[j]) > min_step && (j == i || steps[j] * steps[j - 1] < 0);
    }
    if (alternates) return i + 1;  // the end of the first step
  }
  return std::nullopt;
}

std::optional<Finding> find_in_weight(const Facts& facts, const Series& deviation) {
  constexpr std::array<std::string_view, 2> kStatistics{"mean", "std"};
  for (const std::string_view name : kStatistics) {
    const Series* series = facts.beside(deviation, name);
    if (series == nullptr || deviation.points.empty()) continue;
    const auto first = first_oscillation(series->points, deviation.points.front().value);
    if (!first) continue;
    const Point& high = series->points[*first];
    const Point& low = series->points[*first - 1];
    return Finding{
        .cause = "oscillating_weights",
        .place = deviation.place,
        .first = high.iteration,
        .last = facts.last_iteration(),
        .confidence = kProbable,
        .summary = fmt::format(
            "the weight oscillates from step to step: its {} alternates between {:.4g} and {:.4g}",
            name, low.value, high.value),
        .evidence = {{std::string(name), deviation.place, high.iteration, high.value, ""},
                     {std::string(name), deviation.place, low.iteration, low.value, "before"}}};
  }
  return std::nullopt;
}

std::vector<Finding> find_oscillating_weights(const Facts& facts) {
  std::vector<Finding> found;
  for (const Series* deviation : facts.with("std")) {
    if (deviation->place.tensor != TensorName::weight) continue;
    if (auto finding = find_in_weight(facts, *deviation)) found.push_back(std::move(*finding));
  }
  return found;
}

}  // namespace

Rule oscillating_weights() {
  return {.cause = "oscillating_weights",
          .title = "oscillating weight",
          .doc =
              "The mean or standard deviation of a weight alternates between rising and falling in "
              "7 consecutive steps. Each step is at least 4 times the usual step of the 16 before "
              "and at least a thousandth of the weight's first recorded standard deviation.",
          .stage = Stage::update,
          .required = {"mean", "std"},
          .recorded_by = "LogTensorStats of weights (mean, std), every iteration",
          .alternatives = "Two copies of a model that alternate.",
          .next_step =
              "telens plot RUN --layer '{layer}' --tensor weight --stat mean --stat std; reduce "
              "the learning rate or increase the momentum",
          .find = find_oscillating_weights};
}

}  // namespace telens::analysis
