#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "features/diagnosis/baseline.h"
#include "features/diagnosis/rules/rules.h"
#include "features/diagnosis/sizes.h"

namespace telens::diagnosis {
namespace {

constexpr double kLeast = 0.25;        // bits: a change of the norm by 19 % in one step
constexpr double kTimesUsual = 12;     // the usual change
constexpr double kTimesLargest = 3;    // the largest change so far
constexpr std::size_t kLeastPast = 5;  // changes
constexpr double kMost = 0.6;          // of the weights: then it is the optimizer's step

struct Jump {
  Place place;
  std::int64_t iteration = 0;
  double before = 0, after = 0;  // root mean squares
  double change() const { return std::abs(bits(after) - bits(before)); }
};

std::optional<Jump> first_jump(const Series& sizes) {
  std::vector<double> changes;
  for (std::size_t i = 1; i < sizes.points.size(); ++i) {
    const Jump jump{sizes.place, sizes.points[i].iteration, sizes.points[i - 1].value,
                    sizes.points[i].value};
    if (changes.size() >= kLeastPast && std::isfinite(jump.after)) {
      const double usual = kTimesUsual * median(changes);
      const double largest = kTimesLargest * *std::ranges::max_element(changes);
      if (jump.change() > std::max({kLeast, usual, largest})) return jump;
    }
    changes.push_back(jump.change());
  }
  return std::nullopt;
}

Finding finding_of(const Facts& facts, const std::vector<Jump>& together, std::size_t weights) {
  const bool all = static_cast<double>(together.size()) > kMost * static_cast<double>(weights) &&
                   together.size() > 1;
  const Jump& largest = *std::ranges::max_element(together, {}, &Jump::change);
  std::string summary =
      fmt::format("the root mean square of the weight goes from {:.3g} to {:.3g} in one step",
                  largest.before, largest.after);
  summary += all ? fmt::format(", with {} of {} weights: the learning rate or the optimizer",
                               together.size(), weights)
                 : and_others(together.size() - 1, "weight");
  return {
      .cause = "weight_jump",
      .place = largest.place,
      .first = largest.iteration,
      .last = facts.last_iteration(),
      .confidence = kProven,
      .summary = std::move(summary),
      .evidence = {{"l2_norm / sqrt(numel)", largest.place, largest.iteration, largest.after, ""},
                   {"l2_norm / sqrt(numel)", largest.place, largest.iteration - 1, largest.before,
                    "before"}}};
}

std::vector<Finding> find(const Facts& facts) {
  std::vector<Jump> jumps;
  const std::vector<Series> weights = root_mean_squares(facts, TensorName::weight);
  for (const Series& sizes : weights) {
    if (const auto jump = first_jump(sizes)) jumps.push_back(*jump);
  }
  std::ranges::stable_sort(jumps, {}, &Jump::iteration);
  std::vector<Finding> found;
  for (auto begin = jumps.begin(); begin != jumps.end();) {
    const auto end = std::find_if(
        begin, jumps.end(), [&](const Jump& jump) { return jump.iteration != begin->iteration; });
    found.push_back(finding_of(facts, {begin, end}, weights.size()));
    begin = end;
  }
  return found;
}

}  // namespace

Rule weight_jump() {
  return {.cause = "weight_jump",
          .title = "a weight that changes much more in one step than ever before",
          .doc =
              "The root mean square of a weight changes by a fifth and more, by 12 times the "
              "usual change and 3 times the largest one so far. Where most weights do, it is "
              "the learning rate or the optimizer, else a single parameter.",
          .stage = Stage::update,
          .required = {"l2_norm", "numel"},
          .recorded_by = "LogTensorStats of weights (l2_norm, numel)",
          .alternatives = "A checkpoint that was loaded; weights that are clipped or normalized.",
          .next_step =
              "telens plot RUN --layer '{layer}' --tensor weight --stat l2_norm; "
              "debug.record(\"lr\", ...) beside it",
          .find = find};
}

}  // namespace telens::diagnosis
