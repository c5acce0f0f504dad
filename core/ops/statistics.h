// Statistics of a tensor as operators `telens::statistics`, `telens::accumulate_statistics`,
// `telens::accumulate_central_moments`, `telens::blockwise_dynamic_range` and
// `telens::accumulate_blockwise_dynamic_range`.
//
// x is BF16, FP16 or FP32, with any shape and strides, and may be empty. Results are int64 tensors
// on x's device whose words are the structs of core/ops/statistics_layout.h; nothing is copied to
// the host. Equal inputs give equal counters and extremes on every device and with any number of
// threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/base/error.h"
#include "core/formats/format_id.h"

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

}  // namespace telens::ops
