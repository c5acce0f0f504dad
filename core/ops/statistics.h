// Statistics of a tensor as operators `telens::statistics`, `telens::accumulate_statistics`,
// `telens::accumulate_central_moments`, `telens::blockwise_dynamic_range`,
// `telens::accumulate_blockwise_dynamic_range`, `telens::accumulate_block_cast_statistics` and
// `telens::accumulate_what_if_statistics`.
//
// x is BF16, FP16 or FP32, with any shape and strides, and may be empty. Results are int64 tensors
// on x's device whose words are the structs of core/ops/statistics_layout.h; nothing is copied to
// the host. Equal inputs give equal counters and extremes on every device and with any number of
// threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "core/formats/format_id.h"
#include "core/ops/block_quantize.h"
#include "core/ops/statistics_layout.h"

namespace telens::ops {

// The casts whose effects are measured in the same read: cast i has scales[i] (FP32, 1 element, on
// x's device: the factor for x before encoding) and formats[i] (E4M3 or E5M2).
struct StatisticsCasts {
  std::vector<at::Tensor> scales;
  std::vector<FormatId> formats;
  // Also fills TensorSums::moments: x is read again, by accumulate_central_moments.
  bool moments = false;
};

// Reads x once. Returns int64 [statistics_words(casts)]: TensorSums, then one CastSums per cast.
TELENS_EXPORT at::Tensor statistics(const at::Tensor& x, const StatisticsCasts& casts = {});

// Like statistics(), but merges into an accumulator: int64 [statistics_words(casts)] on x's device,
// created by empty_statistics or statistics with as many casts.
TELENS_EXPORT void accumulate_statistics(const at::Tensor& x, const StatisticsCasts& casts,
                                         at::Tensor& accumulator);

// The neutral accumulator.
TELENS_EXPORT at::Tensor empty_statistics(std::int64_t casts, const at::Device& device);

// How blockwise_dynamic_range splits a tensor, viewed as a matrix [numel / size(-1), size(-1)].
struct BlockRangeOptions {
  std::int64_t size = 32;  // elements along a side, at least 1; the last block of a row is shorter
  std::int64_t dims = 1;   // 1: [1, size] blocks; 2: [size, size] blocks
  bool both_orientations = false;  // also the blocks of the transposed matrix
};

// Returns int64 [kBlockRangesWords]: BlockRanges.
TELENS_EXPORT at::Tensor blockwise_dynamic_range(const at::Tensor& x,
                                                 const BlockRangeOptions& blocks);

// Like blockwise_dynamic_range, but merges into an accumulator created by empty_block_ranges or
// blockwise_dynamic_range.
TELENS_EXPORT void accumulate_blockwise_dynamic_range(const at::Tensor& x,
                                                      const BlockRangeOptions& blocks,
                                                      at::Tensor& accumulator);

TELENS_EXPORT at::Tensor empty_block_ranges(const at::Device& device);

// The checks of every backend's kernels of the operators above.
void check_statistics(const at::Tensor& x, at::TensorList scales, at::IntArrayRef formats);
// accumulator: as in accumulate_statistics, with any number of casts.
void check_central_moments(const at::Tensor& x, const at::Tensor& accumulator);
void check_blockwise_dynamic_range(const at::Tensor& x, std::int64_t block_size, std::int64_t dims);

// accumulator: int64, contiguous, `words` elements, on x's device.
void check_accumulator(const char* operation, const at::Tensor& x, const at::Tensor& accumulator,
                       std::int64_t words);

// Error statistics of a cast with one scale per block.

// One orientation of a tensor in a block format, as returned by ops::quantize_*.
struct BlockCast {
  BlockCodes codes;
  FormatId format;   // E4M3, E5M2; packed: E2M1
  ScalingMode mode;  // a mode with blocks
};

// Reads x and its codes once and merges into an accumulator created by empty_block_casts. x: BF16,
// FP16 or FP32 [rows, columns] in the orientation of the codes (for a columnwise copy, the
// transposed matrix), with any strides. The fields of CastSums (core/ops/statistics_layout.h) for
// blocks:
//   decoded                       as dequantize_blocks to FP32
//   underflows                    nonzero before, decoded to zero
//   overflows                     |x| > FP32(largest value of the format * scale_inv of the block)
//   saturated                     |x| / scale_inv rounds to more than that largest value
//   scale_inv_min, scale_inv_max  over all blocks; packed FP4: times the tensor's scale
// The difference between two equal infinities is NaN, as in IEEE arithmetic.
TELENS_EXPORT void accumulate_block_cast_statistics(const at::Tensor& x, const BlockCast& cast,
                                                    at::Tensor& accumulator);

// The neutral accumulator: int64 [kCastSumsWords].
TELENS_EXPORT at::Tensor empty_block_casts(const at::Device& device);

// The checks of every backend's kernels that read x and its codes. Returns x's format.
FormatId check_block_cast(const char* operation, const at::Tensor& x, const BlockCodes& codes,
                          std::int64_t format, std::int64_t mode);

// Like check_block_cast, and also checks the accumulator.
FormatId check_block_cast_statistics(const at::Tensor& x, const BlockCodes& codes,
                                     std::int64_t format, std::int64_t mode,
                                     const at::Tensor& accumulator);

// Error statistics of hypothetical casts in blocks. Reads x once for all casts, and once for its
// largest magnitudes if a cast needs them first: of the tensor (packed FP4), down the columns, or
// of squares. x: BF16, FP16 or FP32 [rows, columns], any strides. accumulators: one per cast, int64
// [kCastSumsWords] (core/ops/statistics_layout.h), merged into. The words are the same as from
// quantizing x and calling accumulate_block_cast_statistics (errors of a matrix with one row or
// column may be added in a different order).
TELENS_EXPORT void accumulate_what_if_statistics(const at::Tensor& x,
                                                 std::span<const WhatIfCast> casts,
                                                 at::TensorList accumulators);

// The arguments of telens::accumulate_what_if_statistics.
struct WhatIfArguments {
  at::IntArrayRef formats, modes, squares, columnwise;
};

// The checks of every backend's kernel; returns the casts.
std::vector<WhatIfCast> check_what_if_statistics(const at::Tensor& x, const WhatIfArguments& casts,
                                                 at::TensorList accumulators);

}  // namespace telens::ops
