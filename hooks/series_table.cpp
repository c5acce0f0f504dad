#include <fmt/format.h>

#include "core/base/fnv1a.h"
#include "hooks/sink.h"

namespace telens {

std::string Series::logged_as() const { return fmt::format("{}_{}_{}", layer, tensor, statistic); }

std::size_t SeriesTable::ByNames::operator()(const Names& names) const {
  std::size_t hash = 0;
  for (const std::string_view part :
       {names.layer, names.tensor, names.gemm, names.statistic, names.group}) {
    hash = hash * kFnvPrime + std::hash<std::string_view>()(part);  // odd: no part is lost
  }
  return hash;
}

const std::string& SeriesTable::interned(std::string_view name) {
  const auto found = names_.find(name);
  return found != names_.end() ? *found : *names_.emplace(name).first;
}

const Series& SeriesTable::find_or_add(const Names& names) {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(names);
  if (found != known_.end()) return **found;
  const Series& added = series_.emplace_back(Series{
      static_cast<std::uint32_t>(series_.size()), interned(names.layer), interned(names.tensor),
      interned(names.gemm), interned(names.statistic), interned(names.group)});
  known_.insert(&added);
  return added;
}

}  // namespace telens
