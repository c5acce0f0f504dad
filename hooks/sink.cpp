#include "hooks/sink.h"

#include <fmt/format.h>

#include "core/base/fnv1a.h"

namespace telens {

std::string Series::logged_as() const { return fmt::format("{}_{}_{}", layer, tensor, statistic); }

std::size_t SeriesTable::ByNames::operator()(const Names& names) const {
  std::size_t hash = 0;
  for (const std::string_view part :
       {names.layer, names.tensor, names.gemm, names.statistic, names.group}) {
    // odd factor, so no part is lost
    hash = hash * kFnvPrime + std::hash<std::string_view>()(part);
  }
  return hash;
}

const Series& SeriesTable::find_or_add(const Names& names) {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(names);
  if (found != known_.end()) return **found;
  const auto interned = [this](record::Dictionary dictionary, std::string_view name) -> auto& {
    return names_.name(dictionary, names_.id_or_none(dictionary, name));
  };
  const Series& added = series_.emplace_back(Series{
      static_cast<std::uint32_t>(series_.size()), interned(record::Dictionary::layer, names.layer),
      interned(record::Dictionary::tensor, names.tensor),
      interned(record::Dictionary::gemm, names.gemm),
      interned(record::Dictionary::statistic, names.statistic),
      interned(record::Dictionary::scope, names.group)});
  known_.insert(&added);
  return added;
}

}  // namespace telens
