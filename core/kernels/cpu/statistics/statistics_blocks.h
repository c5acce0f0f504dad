// The SIMD kernel used by `blockwise_dynamic_range`: a contiguous matrix, on the calling thread,
// with instructions chosen at run time. No LibTorch.
#pragma once

#include <cstdint>

#include "core/formats/format_id.h"
#include "core/ops/statistics_layout.h"

namespace telens::kernels {

// A row-major matrix of elements of the format `input` (bf16, fp16, fp32).
struct MatrixOfCodes {
  FormatId input;
  const void* data;
  std::int64_t rows;
  std::int64_t columns;
};

// The kinds of blocks to read. Blocks at the edges of the matrix are smaller.
struct BlockKinds {
  std::int64_t size;
  bool of_rows;     // [1, size]
  bool of_columns;  // [size, 1]
  bool squares;     // [size, size]
};

// Merges the ranges of the blocks in rows [first, last) into `ranges`; `first` is a multiple of the
// block size.
void add_block_ranges(const MatrixOfCodes& matrix, const BlockKinds& kinds, std::int64_t first,
                      std::int64_t last, BlockRanges& ranges);

}  // namespace telens::kernels
