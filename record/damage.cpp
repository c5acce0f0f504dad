#include "record/damage.h"

#include <fmt/format.h>
#include <algorithm>
#include <iterator>

namespace telens::record {

void DamageLog::add(const std::string& table, std::uint64_t first_row, std::uint64_t rows) {
  if (rows == 0) return;
  const std::scoped_lock lock(mutex_);
  auto& ranges = ranges_[table];
  std::uint64_t begin = first_row;
  std::uint64_t end = first_row + rows;
  // Merges ranges that touch or overlap.
  auto next = ranges.upper_bound(begin);
  if (next != ranges.begin() && std::prev(next)->second >= begin) --next;
  while (next != ranges.end() && next->first <= end) {
    begin = std::min(begin, next->first);
    end = std::max(end, next->second);
    next = ranges.erase(next);
  }
  ranges.emplace(begin, end);
}

std::vector<DamagedRows> DamageLog::list() const {
  const std::scoped_lock lock(mutex_);
  std::vector<DamagedRows> list;
  for (const auto& [table, ranges] : ranges_) {
    for (const auto& [begin, end] : ranges) list.push_back({table, begin, end - begin});
  }
  return list;
}

std::uint64_t DamageLog::rows(const std::string& table) const {
  const std::scoped_lock lock(mutex_);
  const auto found = ranges_.find(table);
  std::uint64_t rows = 0;
  if (found == ranges_.end()) return rows;
  for (const auto& [begin, end] : found->second) rows += end - begin;
  return rows;
}

DamagedRanges DamageLog::of(const std::string& table) const {
  const std::scoped_lock lock(mutex_);
  DamagedRanges of_table;
  const auto found = ranges_.find(table);
  if (found == ranges_.end()) return of_table;
  for (const auto& [begin, end] : found->second) of_table.add(begin, end);
  return of_table;
}

bool DamagedRanges::contains(std::uint64_t row) const {
  const auto next =
      std::ranges::upper_bound(ranges_, row, {}, [](const auto& range) { return range.first; });
  return next != ranges_.begin() && row < std::prev(next)->second;
}

std::string describe(const std::vector<DamagedRows>& damage) {
  std::string text;
  for (auto of_table = damage.begin(); of_table != damage.end();) {
    const auto next = std::find_if(of_table, damage.end(), [&](const DamagedRows& each) {
      return each.table != of_table->table;
    });
    std::uint64_t rows = 0;
    for (auto each = of_table; each != next; ++each) rows += each->rows;
    const DamagedRows& last = *std::prev(next);
    const std::uint64_t last_row = last.first_row + last.rows - 1;
    if (!text.empty()) text += next == damage.end() ? " and " : ", ";
    if (rows == 1) {
      text += fmt::format("1 row of {} ({})", of_table->table, last_row);
    } else {
      const bool gaps = std::next(of_table) != next;
      text += fmt::format("{} rows of {} ({}{} to {})", rows, of_table->table, gaps ? "among " : "",
                          of_table->first_row, last_row);
    }
    of_table = next;
  }
  return text;
}

}  // namespace telens::record
