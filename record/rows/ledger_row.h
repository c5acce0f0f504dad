// One thing to know about a GEMM as it ran. docs/run_file.md lists entries and details.
#pragma once

#include <cstdint>
#include <tuple>

#include "record/rows/table.h"

namespace telens::record {

// `entry` names what, `detail` says it; both are words. Entries that describe the same state of a
// GEMM share `value`, the state's number.
struct LedgerRow {
  std::int64_t iteration = 0;
  std::int32_t layer = kNoName;
  std::int32_t gemm = kNoName;
  std::int32_t entry = kNoName;
  std::int32_t detail = kNoName;
  double value = 0;
  int rank = 0;  // the file's; filled in by the reader

  static constexpr Table kTable{.name = "ledger"};
  static constexpr auto columns() {
    return std::tuple(number("iteration", &LedgerRow::iteration),
                      number("value", &LedgerRow::value),
                      name("layer", Dictionary::layer, &LedgerRow::layer),
                      name("gemm", Dictionary::gemm, &LedgerRow::gemm),
                      name("entry", Dictionary::word, &LedgerRow::entry, UnknownName::drops_row),
                      name("detail", Dictionary::word, &LedgerRow::detail, UnknownName::drops_row));
  }
};

}  // namespace telens::record
