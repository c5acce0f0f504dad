#include "analysis/rules/compared_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

// Features that compare two ranks take the first one for right.
constexpr std::string_view kEitherRank = "; of two ranks either may be the odd one";

}  // namespace

std::vector<Finding> find_compared(const Facts& facts, const ComparedRanks& compared) {
  const Series* origin = nullptr;
  Point first;
  std::set<std::tuple<std::int32_t, int>> places;  // layers and tensors, whatever the rank
  std::set<int> ranks;                             // that were compared
  for (const Series* series : facts.with(compared.statistic)) {
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
  return {{.cause = compared.cause,
           .place = origin->place,
           .first = first.iteration,
           .last = facts.last_iteration(),
           .confidence = kProven,
           .summary = fmt::format("{}{}{}", compared.summary,
                                  and_others(places.size() - 1, compared.others),
                                  ranks.size() == 2 ? kEitherRank : ""),
           .evidence = {{std::string(compared.statistic), origin->place, first.iteration,
                         first.value, fmt::format("rank {}", origin->place.rank)}}}};
}

}  // namespace telens::analysis
