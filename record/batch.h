// A piece of work that the queue hands to the writer's thread: rows in the order of pushing per
// table, and the names that they are the first to use.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "record/file_rows.h"
#include "record/rows/row_lists.h"
#include "record/run_schema.h"

namespace telens::record {

// Names lie in chunks of so many bytes, which are never compressed.
inline constexpr std::size_t kNameChunkBytes = 4096;

// BinRow::record counts from the first record of the batch.
class Batch {
 public:
  template <typename Row>
  std::vector<Row>& of() {
    return rows_.of<Row>();
  }
  template <typename Row>
  const std::vector<Row>& of() const {
    return rows_.of<Row>();
  }
  template <typename Use>
  void for_each_table(Use use) const {
    rows_.for_each(use);
  }

  std::uint64_t recorded() const;            // how many rows a session handed over
  std::uint64_t bytes() const;               // at the most, in a file
  void drop_first(const RowCounts& counts);  // bins go with their records
  void clear();

  std::array<std::vector<std::string>, kDictionaries> names;  // by dictionary

 private:
  RowLists<BatchRows> rows_;
};

}  // namespace telens::record
