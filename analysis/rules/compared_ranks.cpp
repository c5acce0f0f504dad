#include "analysis/rules/compared_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

// With two ranks, the features treat the first as correct, although either may be wrong.
constexpr std::string_view kEitherRank = "; with two ranks, either may be the wrong one";

}  // namespace

std::vector<Finding> find_rank_difference(const Facts& facts, const RankComparison& comparison) {
  const Series* origin = nullptr;
  Point first;
  std::set<std::tuple<std::int32_t, int>> places;  // layer and tensor, on any rank
  std::set<int> ranks;                             // that recorded the statistic
  for (const Series* series : facts.with(comparison.statistic)) {
    ranks.insert(series->place.rank);
    const auto wrong =
        std::ranges::find_if(series->points, [](const Point& point) { return point.value > 0; });
    if (wrong == series->points.end()) continue;
    places.emplace(series->place.layer, static_cast<int>(*series->place.tensor));
    if (origin != nullptr && first.iteration <= wrong->iteration) continue;
    origin = series;
    first = *wrong;
  }
  if (origin == nullptr) return {};
  return {{.cause = comparison.cause,
           .place = origin->place,
           .first = first.iteration,
           .last = facts.last_iteration(),
           .confidence = kProven,
           .summary = fmt::format("{}{}{}", comparison.summary,
                                  and_others(places.size() - 1, comparison.others),
                                  ranks.size() == 2 ? kEitherRank : ""),
           .evidence = {{std::string(comparison.statistic), origin->place, first.iteration,
                         first.value, fmt::format("rank {}", origin->place.rank)}}}};
}

}  // namespace telens::analysis
