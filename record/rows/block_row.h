// One statistic of one block of a tensor that is scaled block by block.
#pragma once

#include <cstdint>
#include <tuple>

#include "record/rows/table.h"

namespace telens::record {

// `block_row` and `block_column` count blocks from the tensor's first element.
struct BlockRow {
  std::int64_t iteration = 0;
  std::int32_t layer = kNoName;
  std::int32_t tensor = kNoName;
  std::int32_t gemm = kNoName;
  std::int32_t statistic = kNoName;
  std::int32_t block_row = 0;
  std::int32_t block_column = 0;
  double value = 0;
  int rank = 0;  // the file's; filled in by the reader

  static constexpr Table kTable{.name = "blocks", .is_thinned = true};
  static constexpr auto columns() {
    return std::tuple(
        number("iteration", &BlockRow::iteration), number("value", &BlockRow::value),
        name("layer", Dictionary::layer, &BlockRow::layer, UnknownName::drops_row),
        name("statistic", Dictionary::statistic, &BlockRow::statistic, UnknownName::drops_row),
        number("block_row", &BlockRow::block_row), number("block_column", &BlockRow::block_column),
        name<std::int16_t>("tensor", Dictionary::tensor, &BlockRow::tensor),
        name<std::int16_t>("gemm", Dictionary::gemm, &BlockRow::gemm));
  }
};

}  // namespace telens::record
