#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <vector>

#include "analysis/rules/norm_gains.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

constexpr std::array<std::string_view, 4> kDigestStatistics{"l2_norm", "mean", "std", "cur_amax"};
constexpr std::int64_t kStartIterations = 1;  // after the first record

using Digest = std::array<double, kDigestStatistics.size()>;

// Returns the statistics that identify a weight in an iteration; nullopt if one is missing or if
// all elements are equal.
std::optional<Digest> get_digest(const Facts& facts, const Series& norm, std::int64_t iteration) {
  Digest values{};
  for (std::size_t i = 0; i < kDigestStatistics.size(); ++i) {
    const Series* series = facts.beside(norm, kDigestStatistics[i]);
    const auto value = series != nullptr ? series->at(iteration) : std::nullopt;
    if (!value) return std::nullopt;
    values[i] = *value;
  }
  return values[2] > 0 ? std::optional(values) : std::nullopt;
}

std::vector<std::int64_t> equal_iterations(const Facts& facts, const Series& a, const Series& b) {
  std::vector<std::int64_t> equal;
  for (const Point& point : a.points) {
    if (b.at(point.iteration) != point.value) continue;  // cheaper than a digest
    const auto digest_of_a = get_digest(facts, a, point.iteration);
    if (digest_of_a && digest_of_a == get_digest(facts, b, point.iteration))
      equal.push_back(point.iteration);
  }
  return equal;
}

// Returns the sum of the relative changes of a weight's statistics in the step that made it equal;
// 0 if the weight was not recorded before.
double change_before(const Facts& facts, const Series& norm, std::int64_t first) {
  const Point* before = norm.before(first);
  if (before == nullptr) return 0;
  const auto old_digest = get_digest(facts, norm, before->iteration);
  const auto new_digest = get_digest(facts, norm, first);
  double change = 0;
  for (std::size_t i = 0; old_digest && new_digest && i < kDigestStatistics.size(); ++i) {
    if ((*old_digest)[i] == 0) continue;
    change += std::abs((*new_digest)[i] - (*old_digest)[i]) / std::abs((*old_digest)[i]);
  }
  return change;
}

// Returns the last iteration whose norm is finite. NaN does not equal NaN, so tied weights would
// otherwise seem to separate.
std::int64_t get_last_finite(const Series& norm) {
  const auto last = std::ranges::find_if(
      norm.points.rbegin(), norm.points.rend(), [](double value) { return std::isfinite(value); },
      &Point::value);
  return last != norm.points.rend() ? last->iteration : norm.points.back().iteration;
}

Finding duplicate_weights_finding(const Facts& facts, const Series& a, const Series& b,
                                  std::int64_t first, std::int64_t last) {
  const double change_of_a = change_before(facts, a, first);
  const double change_of_b = change_before(facts, b, first);
  const bool is_known = change_of_a != change_of_b;  // the weight that changed more is the copy
  const Series& copy = change_of_a > change_of_b ? a : b;
  const Series& other = &copy == &a ? b : a;
  const std::string& name = facts.layer_name(other.place.layer);
  return {.cause = "duplicate_weights",
          .place = copy.place,
          .first = first,
          .last = last,
          .confidence = kProven,
          .summary =
              is_known
                  ? fmt::format("the weight becomes a copy of the weight of {}, which changed less "
                                "in this step",
                                name)
                  : fmt::format("the weight equals the weight of {}; either may be the copy", name),
          .evidence = {{"l2_norm", copy.place, first, *copy.at(first), ""},
                       {"l2_norm", other.place, first, *other.at(first), "of " + name}}};
}

std::vector<Finding> find_duplicate_weights(const Facts& facts) {
  // Compare only pairs whose norms are equal in some iteration.
  std::map<std::tuple<int, std::int64_t, double>, const Series*> known;
  std::map<const Series*, const Series*> pairs;
  for (const Series* norm : facts.with("l2_norm")) {
    if (norm->place.tensor != TensorName::weight) continue;
    // Gains start at 1, and the first steps of Adam change all of them by the same amount.
    if (is_norm(facts.layer_name(norm->place.layer))) continue;
    for (const Point& point : norm->points) {
      if (!std::isfinite(point.value)) continue;  // NaN has no order
      const auto [at, is_new] =
          known.try_emplace({norm->place.rank, point.iteration, point.value}, norm);
      if (!is_new && at->second->place.layer != norm->place.layer) pairs.emplace(norm, at->second);
    }
  }
  std::vector<Finding> found;
  for (const auto& [norm, other] : pairs) {
    const auto equal = equal_iterations(facts, *other, *norm);
    if (equal.empty()) continue;
    // Weights that are equal in the whole run are shared on purpose.
    const std::int64_t first_seen = norm->points.front().iteration;
    const bool from_start = equal.front() <= first_seen + kStartIterations;
    if (from_start && equal.back() == get_last_finite(*norm)) continue;
    found.push_back(duplicate_weights_finding(facts, *other, *norm, equal.front(), equal.back()));
  }
  return found;
}

}  // namespace

Rule duplicate_weights() {
  return {.cause = "duplicate_weights",
          .title = "two layers with identical weights",
          .doc =
              "Norm, mean, standard deviation and amax of two weights agree in all digits at the "
              "start or from some iteration on, but not in the whole run. Layers that share one "
              "weight agree in the whole run and are not reported.",
          .stage = Stage::setup,
          .required = {"l2_norm", "mean", "std", "cur_amax"},
          .recorded_by = "LogTensorStats of weights (l2_norm, mean, std, cur_amax)",
          .alternatives = "Weights that are tied temporarily on purpose.",
          .next_step =
              "look for copy.deepcopy of an initialized block, [block] * n, a seed that is reset "
              "for each layer, or a checkpoint with wrong parameter names",
          .find = find_duplicate_weights};
}

}  // namespace telens::analysis
