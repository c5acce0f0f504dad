#include <fmt/format.h>

#include "hooks/sink.h"

namespace telens {
namespace {

constexpr char kSeparator = '\x1f';  // ASCII's unit separator: in no name

std::string key_of(const SeriesTable::Names& names) {
  std::string key;
  for (std::string_view part :
       {names.layer, names.tensor, names.gemm, names.statistic, names.group}) {
    key.append(part).push_back(kSeparator);
  }
  return key;
}

}  // namespace

const Series& SeriesTable::find_or_add(const Names& names) {
  std::string key = key_of(names);
  const std::lock_guard lock(mutex_);
  const auto found = by_key_.find(key);
  if (found != by_key_.end()) return *found->second;
  series_.push_back({static_cast<std::uint32_t>(series_.size()), std::string(names.layer),
                     std::string(names.tensor), std::string(names.gemm),
                     std::string(names.statistic), std::string(names.group),
                     fmt::format("{}_{}_{}", names.layer, names.tensor, names.statistic)});
  by_key_.emplace(std::move(key), &series_.back());
  return series_.back();
}

}  // namespace telens
