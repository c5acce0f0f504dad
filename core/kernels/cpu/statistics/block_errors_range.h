// The SIMD kernels behind `block_cast_errors` and `block_copies_difference`, over contiguous memory
// and on the calling thread. Chosen at run time for the processor. No LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/kernels/cpu/statistics/statistics_block_cast_range.h"
#include "core/ops/block_errors_layout.h"

namespace telens::kernels {

// blocks[b] gets what the cast did to its elements, b * length <= i < (b + 1) * length; the last
// block may have fewer.
void add_block_errors(const BlockCastElements& elements, FormatId element, std::size_t length,
                      BlockErrors* blocks);

// The same of blocks that go down the columns of rows in memory: each element of a row is of
// another block, and rows come one after the other.
class ColumnErrors {
 public:
  explicit ColumnErrors(std::size_t columns);

  void add(const BlockCastElements& row, FormatId element);
  BlockErrors of(std::size_t column) const;

 private:
  // Up to whole vectors.
  std::vector<double> squared_errors_;
  std::vector<std::int32_t> nonzero_, underflows_, saturated_;
  std::int32_t rows_ = 0;
};

// How a differs from b.
void add_difference(const float* a, const float* b, std::size_t size, CopiesDifference& sums);

}  // namespace telens::kernels
