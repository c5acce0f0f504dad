// Error statistics of a cast with one scale per block: the operator
// `telens::accumulate_block_cast_statistics`, called through the dispatcher.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/base/error.h"
#include "core/ops/block_quantize.h"

namespace telens::ops {

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

}  // namespace telens::ops
