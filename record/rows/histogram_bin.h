// The bins of histograms.
#pragma once

#include <cstdint>
#include <tuple>

#include "record/rows/table.h"

namespace telens::record {

// A bin's number and how many elements fell into it.
struct HistogramBin {
  std::int32_t bin = 0;
  std::uint64_t count = 0;
};

// A bin as a row: `record` is the row number, in the table of records of the same file, that the
// bin belongs to. The value of that record is the number of elements of all bins.
struct BinRow {
  std::int64_t record = 0;
  std::int64_t bin = 0;
  std::uint64_t count = 0;

  static constexpr Table kTable{.name = "histograms", .is_thinned = true};
  static constexpr auto columns() {
    return std::tuple(number("record", &BinRow::record), number("bin", &BinRow::bin),
                      number("count", &BinRow::count));
  }
};

}  // namespace telens::record
