#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <vector>

#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

constexpr std::size_t kMinUnchangedSteps = 5;  // consecutive steps, up to the end of the run
constexpr double kMinMovingShare = 0.5;  // share of all weights that change in each of these steps

// Returns the points at the end of the run in which the weight is the same: at least two, or none.
std::span<const Point> unchanged_at_end(const Facts& facts, const Series& norm) {
  const Series* mean = facts.beside(norm, "mean");
  const auto is_same = [&](const Point& a, const Point& b) {
    return a.value == b.value &&
           (mean == nullptr || mean->at(a.iteration) == mean->at(b.iteration));
  };
  std::size_t first = norm.points.size();
  while (first > 1 && is_same(norm.points[first - 2], norm.points.back())) --first;
  if (first == norm.points.size()) return {};
  return std::span(norm.points).subspan(first - 1);
}

// Returns the number of these iterations in which the weight had a nonzero gradient.
std::size_t count_gradients(const Series* gradient, std::span<const Point> unchanged) {
  if (gradient == nullptr) return 0;
  return static_cast<std::size_t>(std::ranges::count_if(unchanged, [&](const Point& point) {
    return gradient->at(point.iteration).value_or(0) > 0;
  }));
}

Evidence largest_gradient(const Series& gradient, std::span<const Point> unchanged) {
  const auto size = [&](const Point& point) { return gradient.at(point.iteration).value_or(0); };
  const Point& largest = *std::ranges::max_element(unchanged, {}, size);
  return {"l2_norm", gradient.place, largest.iteration, size(largest), "of its largest gradient"};
}

// Returns true if most weights change from each of these points to the next.
bool others_move(const std::vector<const Series*>& norms, std::span<const Point> unchanged) {
  for (std::size_t i = 1; i < unchanged.size(); ++i) {
    const auto moved = std::ranges::count_if(norms, [&](const Series* norm) {
      const auto before = norm->at(unchanged[i - 1].iteration);
      const auto after = norm->at(unchanged[i].iteration);
      return before && after && *before != *after;
    });
    if (static_cast<double>(moved) <= kMinMovingShare * static_cast<double>(norms.size()))
      return false;
  }
  return true;
}

// Returns true if most updates are smaller than the rounding of the weight, which lost_updates
// reports.
bool loses_updates(const Facts& facts, const Place& weight) {
  constexpr double kMinLostPercent = 50;  // percent
  const Series* lost = facts.find(weight, "lost_updates%");
  return lost != nullptr && !lost->points.empty() && lost->points.back().value >= kMinLostPercent;
}

std::vector<Finding> find_frozen_weight(const Facts& facts) {
  std::vector<const Series*> norms = facts.with("l2_norm");
  std::erase_if(norms, [](const Series* norm) { return norm->place.tensor != TensorName::weight; });
  std::vector<Finding> found;
  for (const Series* norm : norms) {
    const auto unchanged = unchanged_at_end(facts, *norm);
    if (unchanged.size() <= kMinUnchangedSteps || !std::isfinite(unchanged.front().value)) continue;
    Place of_gradient = norm->place;
    of_gradient.tensor = TensorName::wgrad;
    const Series* gradient = facts.find(of_gradient, "l2_norm");
    if (count_gradients(gradient, unchanged) < kMinUnchangedSteps) continue;
    if (!others_move(norms, unchanged) || loses_updates(facts, norm->place)) continue;
    const std::int64_t first = unchanged.front().iteration;
    found.push_back({.cause = "frozen_weight",
                     .place = norm->place,
                     .first = first,
                     .last = unchanged.back().iteration,
                     .confidence = kProven,
                     .summary = fmt::format("the weight has a gradient but did not change in {} "
                                            "optimizer steps, while other weights did",
                                            unchanged.size() - 1),
                     .evidence = {{"l2_norm", norm->place, first, unchanged.front().value, ""},
                                  {"l2_norm", norm->place, unchanged.back().iteration,
                                   unchanged.back().value, "unchanged"},
                                  largest_gradient(*gradient, unchanged)}});
  }
  return found;
}

}  // namespace

Rule frozen_weight() {
  return {.cause = "frozen_weight",
          .title = "weight not updated despite a gradient",
          .doc =
              "Norm and mean of a weight do not change in any digit in at least the last 5 steps, "
              "while its gradient (wgrad) is nonzero and most other weights change. A weight "
              "without a gradient is frozen on purpose and is not reported, and neither is a "
              "weight whose updates are lost to rounding (lost_updates).",
          .stage = Stage::update,
          .required = {"l2_norm"},
          .optional = {"mean", "lost_updates%"},
          .recorded_by = "LogTensorStats of weights and wgrads (l2_norm, mean)",
          .alternatives =
              "A parameter that is excluded from the optimizer on purpose; updates that are "
              "smaller than the rounding of the weight, for example in BF16.",
          .next_step =
              "look for the weight of '{layer}' in the optimizer's param_groups: it may have been "
              "replaced after the optimizer was created, or its .grad is reset before the step",
          .find = find_frozen_weight};
}

}  // namespace telens::analysis
