// The SIMD kernel behind `blockwise_dynamic_range`, over a contiguous matrix and on the calling
// thread. Chosen at run time for the processor. No LibTorch.
#pragma once

#include <cstdint>

#include "core/formats/format_id.h"
#include "core/ops/statistics_layout.h"

namespace telens::kernels {

// Row-major; elements of the format `input` (bf16, fp16, fp32).
struct MatrixOfCodes {
  FormatId input;
  const void* data;
  std::int64_t rows;
  std::int64_t columns;
};

// The blocks of a matrix that are read; those at its edges are smaller.
struct BlockKinds {
  std::int64_t size;
  bool of_rows;     // [1, size]
  bool of_columns;  // [size, 1]
  bool squares;     // [size, size]
};

// Merges the ranges of the blocks of rows [first, last), `first` a multiple of the block size, into
// `ranges`.
void add_block_ranges(const MatrixOfCodes& matrix, const BlockKinds& kinds, std::int64_t first,
                      std::int64_t last, BlockRanges& ranges);

}  // namespace telens::kernels
