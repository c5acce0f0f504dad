// Records which rows of a file are damaged, that is, changed by a disk or a copy.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace telens::record {

// Rows first_row to first_row + rows - 1 of a table.
struct DamagedRows {
  std::string table;
  std::uint64_t first_row = 0;
  std::uint64_t rows = 0;
};

// Damaged rows of a table as ascending ranges [first, end).
class DamagedRanges {
 public:
  void add(std::uint64_t first, std::uint64_t end) { ranges_.emplace_back(first, end); }
  bool contains(std::uint64_t row) const;

 private:
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges_;
};

// Counts each row once, however often it is read. Thread-safe.
class DamageLog {
 public:
  void add(const std::string& table, std::uint64_t first_row, std::uint64_t rows);
  std::vector<DamagedRows> list() const;  // sorted by table, then by row
  std::uint64_t rows(const std::string& table) const;
  DamagedRanges of(const std::string& table) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::map<std::uint64_t, std::uint64_t>> ranges_;  // first row to end
};

// Returns text such as "4096 rows of records (8192 to 12287) and 1 row of names/layer (3)".
std::string describe(const std::vector<DamagedRows>& damage);

}  // namespace telens::record
