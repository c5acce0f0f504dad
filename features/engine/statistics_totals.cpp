#include "features/engine/statistics_totals.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "features/statistics/finish.h"

namespace telens::features {
namespace {

std::string name_of(const CastRequest& cast) {
  return fmt::format("cast {} {}{}{}", telens::name_of(cast.recipe), static_cast<int>(cast.format),
                     cast.columnwise ? " columnwise" : "", cast.altered ? " altered" : "");
}

std::string scale_name(const RequestSet& set) {
  return fmt::format("scale of {}", name_of(set.casts()[*set.scale_cast()]));
}

std::string name_of(const BlockShape& shape) {
  return fmt::format("blocks {} {}", shape.size, shape.dims);
}

std::string name_of_defined(const std::string& statistic) {
  return fmt::format("defined {}", statistic);
}

void merge(DefinedSums& into, const DefinedSums& part) { into.merge(part); }

}  // namespace

template <typename Sums>
Sums& Totals::find_or_add(std::string name) {
  const auto found = std::ranges::find(all_, name, &Named::name);
  if (found != all_.end()) return std::get<Sums>(found->sums);
  return std::get<Sums>(all_.emplace_back(Named{std::move(name), Sums{}}).sums);
}

const AnySums& Totals::find(const std::string& name) const {
  return std::ranges::find(all_, name, &Named::name)->sums;
}

void Totals::add(const RequestSet& set, const TensorResults& part) {
  merge(std::get<TensorSums>(all_.front().sums), part.sums.tensor());
  for (std::size_t i = 0; i < set.casts().size(); ++i) {
    merge(find_or_add<CastSums>(name_of(set.casts()[i])), part.sums.casts()[i]);
  }
  for (std::size_t i = 0; i < set.block_casts().size(); ++i) {
    merge(find_or_add<CastSums>(name_of(set.block_casts()[i])), part.block_casts[i]);
  }
  for (std::size_t i = 0; i < set.blocks().size(); ++i) {
    merge(find_or_add<BlockRanges>(name_of(set.blocks()[i])), part.ranges[i]);
  }
}

void Totals::add(const RequestSet& set, const ScaleSums& part) {
  merge(find_or_add<ScaleSums>(scale_name(set)), part);
}

void Totals::add(const std::string& statistic, const DefinedSums& part) {
  merge(find_or_add<DefinedSums>(name_of_defined(statistic)), part);
}

std::optional<double> Totals::value(const StatisticRequest& request, const RequestSet& set) const {
  const Statistic statistic = request.name.statistic;
  if (request.defined) {
    return std::get<DefinedSums>(find(name_of_defined(request.name.defined))).finish();
  }
  if (is_scale_statistic(statistic)) {
    return finish(statistic, std::get<ScaleSums>(find(scale_name(set))));
  }
  if (request.is_of_cast()) {
    const CastRequest& cast =
        request.cast ? set.casts()[*request.cast] : set.block_casts()[*request.block_cast];
    return finish(statistic, std::get<CastSums>(find(name_of(cast))));
  }
  if (request.blocks) {
    return finish(std::get<BlockRanges>(find(name_of(set.blocks()[*request.blocks]))));
  }
  return finish(statistic, tensor());
}

}  // namespace telens::features
