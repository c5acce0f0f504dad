// The SIMD kernels of statistics: contiguous memory, on the calling thread, with instructions
// chosen at run time. No LibTorch. Each section names its sources.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/formats/format_id.h"
#include "core/ops/statistics_layout.h"

namespace telens::kernels {

// ---- `statistics` (statistics_range.cpp)

// The effects of a cast as magnitudes of the tensor's format. Unsigned codes increase with their
// values, so each counter of CastSums is one integer comparison per element.
struct CastPlan {
  FormatId format = FormatId::e4m3;
  float scale = 1;
  float scale_inv = 1;
  std::uint32_t first_nonzero = 1;   // smaller ones become zero
  std::uint32_t first_overflow = 0;  // this and larger numbers are beyond the format's range
  std::uint32_t first_clipped = 0;   // this and larger numbers are clipped
};

// Returns the plan of a cast from the format `input` (bf16, fp16, fp32) to `output` (e4m3, e5m2).
CastPlan plan_cast(FormatId input, FormatId output, float scale);

// Merges the statistics of x, `size` elements of the format `input`, into `tensor` and `casts` (one
// per plan), one chunk after the other.
void add_statistics(FormatId input, const void* x, std::size_t size,
                    std::span<const CastPlan> plans, TensorSums& tensor, std::span<CastSums> casts);

// ---- `accumulate_central_moments` (central_moments_range.cpp)

// Merges the moments of x, `size` elements of the format `input` (bf16, fp16, fp32), into
// `moments`, one chunk after the other.
void add_central_moments(FormatId input, const void* x, std::size_t size, CentralMoments& moments);

// ---- `blockwise_dynamic_range` (statistics_blocks.cpp)

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

// ---- `accumulate_block_cast_statistics` (statistics_block_cast_range.cpp)

// Elements before and after a block cast. All arrays have `size` elements.
struct BlockCastElements {
  FormatId input;        // format of x: bf16, fp16 or fp32
  const void* x;         // before
  const float* decoded;  // the values after the cast
  const float* scales;   // each element's block scale: at least 0, or NaN
  std::size_t size;
};

// Merges the errors of the cast to `element` (e4m3, e5m2, e2m1) into `sums`. Does not change
// scale_inv_min and scale_inv_max.
void add_block_cast(const BlockCastElements& elements, FormatId element, CastSums& sums);

// ---- `accumulate_what_if_statistics` (statistics_what_if_range.cpp)

// Elements before a cast. Each block has a factor that multiplies its elements before rounding (at
// least 0, or NaN if and only if the scale is NaN), and a factor after rounding (its scale_inv).
struct UncastElements {
  FormatId input;  // format of x: bf16, fp16 or fp32
  const void* x;
  std::size_t size;
  const float* factors;
  const float* scales;
  // Consecutive elements that share a factor, divisible by 16; 1 if each element has its own.
  std::size_t block;
};

// Merges the errors that the cast to `element` (e4m3, e5m2, e2m1) would cause into `sums`. Does not
// change scale_inv_min and scale_inv_max. Bit-identical to encoding, decoding and add_block_cast
// (core/kernels/cpu/statistics/statistics_ranges.h).
void add_what_if_cast(const UncastElements& elements, FormatId element, CastSums& sums);

// ---- `block_cast_errors` and `block_copies_difference` (block_errors_range.cpp)

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
