// The SIMD kernels used by `block_cast_errors` and `block_copies_difference`: contiguous memory, on
// the calling thread, with instructions chosen at run time. No LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/kernels/cpu/statistics/statistics_block_cast_range.h"
#include "core/ops/block_errors_layout.h"

namespace telens::kernels {

// Adds to blocks[b] the errors of casting the elements b * length <= i < (b + 1) * length. The last
// block may be shorter.
void add_block_errors(const BlockCastElements& elements, FormatId element, std::size_t length,
                      BlockErrors* blocks);

// The errors of blocks that run down the columns of a row-major matrix: each element of a row
// belongs to another block, and rows are added in order.
class ColumnErrors {
 public:
  explicit ColumnErrors(std::size_t columns);

  void add(const BlockCastElements& row, FormatId element);
  BlockErrors of(std::size_t column) const;

 private:
  // Padded to whole vectors.
  std::vector<double> squared_errors_;
  std::vector<std::int32_t> nonzero_, underflows_, saturated_;
  std::int32_t rows_ = 0;
};

// Adds the difference of a and b to `sums`.
void add_difference(const float* a, const float* b, std::size_t size, CopiesDifference& sums);

}  // namespace telens::kernels
