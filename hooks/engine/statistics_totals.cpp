#include "hooks/engine/statistics_totals.h"

#include <algorithm>

#include "core/base/fnv1a.h"
#include "hooks/statistics/catalogue.h"

namespace telens::features {
namespace {

SumsKey make_key(const StatisticRequest& request, const RequestSet& set) {
  SumsKey key{.source = request.name.statistic->source()};
  if (request.cast) key.cast = set.casts()[*request.cast];
  if (request.block_cast) key.cast = set.block_casts()[*request.block_cast];
  if (request.blocks) key.blocks = set.blocks()[*request.blocks];
  if (request.defined) key.statistic = set.defined()[*request.defined];
  return key;
}

}  // namespace

std::uint64_t SumsKey::hash() const {
  std::uint64_t hash = statistic == nullptr ? 0 : fnv1a(statistic->name);
  for (const std::int64_t part :
       {static_cast<std::int64_t>(source), static_cast<std::int64_t>(cast.recipe),
        static_cast<std::int64_t>(cast.format), std::int64_t{cast.columnwise},
        std::int64_t{cast.altered}, blocks.size, std::int64_t{blocks.dims}}) {
    hash = mixed(hash, static_cast<std::uint64_t>(part));
  }
  return hash;
}

std::optional<double> Totals::value(const StatisticRequest& request, const RequestSet& set) const {
  const auto slot = std::ranges::find(slots_, make_key(request, set), &Slot::key);
  return std::visit(
      [&]<typename Sums>(const Sums& sums) -> std::optional<double> {
        if constexpr (std::is_same_v<Sums, DefinedSums>) {
          return sums.finish();
        } else {
          return finish(request.name.statistic, sums);
        }
      },
      slot->sums);
}

}  // namespace telens::features
