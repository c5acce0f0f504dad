// The schema of a run file, as docs/run_file.md describes it: versions, dictionaries, all tables.
// Requires neither LibTorch nor HDF5.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "record/rows/table.h"
#include "record/rows/tables.h"

namespace telens::record {

// Incremented for each new table, and if a reader of the previous version could misread a file. A
// reader rejects newer versions.
inline constexpr int kSchemaVersion = [] {
  int newest = 3;
  for_each_type<RecordedRows>(
      [&]<typename Row>() { newest = std::max(newest, Row::kTable.since); });
  return newest;
}();
// The first schema version with checksums for rows.
inline constexpr int kFirstWithChecksums = 3;

struct DictionaryLayout {
  Dictionary dictionary;
  std::string_view dataset;
  std::size_t width;  // bytes of a name; longer names are truncated
};
inline constexpr std::array<DictionaryLayout, kDictionaries> kDictionaryLayouts{{
    {Dictionary::layer, "names/layer", 256},
    {Dictionary::tensor, "names/tensor", 32},
    {Dictionary::gemm, "names/gemm", 32},
    {Dictionary::statistic, "names/statistic", 128},
    {Dictionary::scope, "names/scope", 128},
    {Dictionary::word, "names/word", 512},
}};

// All tables of a run file: those that a session records and those that the writer adds.

// Written when rows were dropped: a file with such a row is incomplete.
struct Drop {
  double time = 0;             // seconds since 1970
  std::int64_t iteration = 0;  // of the first dropped row
  std::int64_t rows = 0;

  static constexpr Table kTable{
      .name = "drops", .storage = Storage::plain, .chunk_rows = 128, .is_recorded = false};
  static constexpr auto columns() {
    return std::tuple(number("time", &Drop::time), number("iteration", &Drop::iteration),
                      number("rows", &Drop::rows));
  }
};

// How a file ended. An exception text that does not fit one cell takes several rows with the same
// time and state. The last row has the beginning of the text, because older readers use only that
// row. A file without such rows was not closed.
struct EndRow {
  double time = 0;         // seconds since 1970
  std::int64_t state = 0;  // an End
  std::array<char, 240> reason{};

  static constexpr std::size_t kMaxParts = 8;

  static constexpr Table kTable{
      .name = "end", .storage = Storage::plain, .chunk_rows = 1, .is_recorded = false};
  static constexpr auto columns() {
    return std::tuple(number("time", &EndRow::time), number("state", &EndRow::state),
                      number("reason", &EndRow::reason));
  }
};

// In the order of writing. Bins precede the records that they belong to: if a record is in the
// file, its bins are too.
using BatchRows =
    decltype(std::tuple_cat(std::tuple<BinRow, Record>(), RecordedRows(), std::tuple<Drop>()));
using FileRows = decltype(std::tuple_cat(BatchRows(), std::tuple<EndRow>()));

template <typename Row>
inline constexpr std::string_view kTableName = Row::kTable.name;

// The index of a table in FileRows.
template <typename Row>
inline constexpr std::size_t kTableIndex = [] {
  std::size_t index = 0;
  std::size_t next = 0;
  for_each_type<FileRows>([&]<typename Each>() {
    if (std::is_same_v<Row, Each>) index = next;
    ++next;
  });
  return index;
}();

// The number of rows in each table of a file.
class RowCounts {
 public:
  template <typename Row>
  std::uint64_t& of() {
    return counts_[kTableIndex<Row>];
  }
  template <typename Row>
  std::uint64_t of() const {
    return counts_[kTableIndex<Row>];
  }

  // Returns the number of rows that a session recorded.
  std::uint64_t recorded() const {
    std::uint64_t rows = 0;
    for_each_type<FileRows>(
        [&]<typename Row>() { rows += Row::kTable.is_recorded ? of<Row>() : 0; });
    return rows;
  }

  bool operator==(const RowCounts&) const = default;

 private:
  std::array<std::uint64_t, std::tuple_size_v<FileRows>> counts_{};
};

// The clock for times in run files.

inline double seconds_since_1970() {
  using Seconds = std::chrono::duration<double>;
  return Seconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace telens::record
