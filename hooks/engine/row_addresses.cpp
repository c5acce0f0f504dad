#include "hooks/engine/row_addresses.h"

#include <algorithm>

namespace telens::features {
namespace {

void merge(RowAddress& into, const RowAddress& other) {
  into.loggers |= other.loggers;
  into.run_file |= other.run_file;
  into.rings |= other.rings;
}

}  // namespace

void RowAddresses::add(const StatisticName& name, bool logged, std::uint64_t rings) {
  RowAddresses one;
  one.all_.push_back({name, {logged && rings == 0, rings == 0, rings}});
  add(one);
}

void RowAddresses::add(const RowAddresses& others) {
  for (const auto& [name, address] : others.all_) {
    const auto found = std::ranges::find(all_, name, [](const auto& each) { return each.first; });
    if (found == all_.end()) {
      all_.push_back({name, address});
    } else {
      merge(found->second, address);
    }
  }
}

std::optional<RowAddress> RowAddresses::of(const StatisticName& name) const {
  const auto found = std::ranges::find(all_, name, [](const auto& each) { return each.first; });
  return found == all_.end() ? std::nullopt : std::optional(found->second);
}

RowAddress RowAddresses::of_counters() const {
  RowAddress all;
  for (const auto& [name, address] : all_) merge(all, address);
  all.loggers = false;
  return all;
}

}  // namespace telens::features
