// Error statistics of a cast with a scale a block: the operator
// `telens::accumulate_block_cast_statistics`, called through the dispatcher.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/base/error.h"
#include "core/ops/block_quantize.h"

namespace telens::ops {

// One orientation of a tensor in a block format, as ops::quantize_* make it.
struct BlockCast {
  BlockCodes codes;
  FormatId format;   // E4M3, E5M2; packed: E2M1
  ScalingMode mode;  // one of blocks
};

// One read of x and its codes, merged into an accumulator made by empty_block_casts. x: BF16, FP16
// or FP32 [rows, columns] of the codes' own orientation (of a columnwise copy the transposed
// matrix), any strides. CastSums (core/ops/statistics_layout.h), read for blocks:
//   decoded                       as dequantize_blocks to FP32
//   underflows                    nonzero before, decoded to zero
//   overflows                     |x| > FP32(largest value of the format * scale_inv of the block)
//   saturated                     |x| / scale_inv rounds to more than that largest value
//   scale_inv_min, scale_inv_max  over all blocks; packed FP4: times the tensor's scale
// A difference of two equal infinities is NaN, as in IEEE arithmetic.
TELENS_EXPORT void accumulate_block_cast_statistics(const at::Tensor& x, const BlockCast& cast,
                                                    at::Tensor& accumulator);

// The neutral accumulator: int64 [kCastSumsWords].
TELENS_EXPORT at::Tensor empty_block_casts(const at::Device& device);

// The checks of every backend's kernels of x and its codes; returns x's format.
FormatId check_block_cast(const char* operation, const at::Tensor& x, const BlockCodes& codes,
                          std::int64_t format, std::int64_t mode);

// The same, and the accumulator.
FormatId check_block_cast_statistics(const at::Tensor& x, const BlockCodes& codes,
                                     std::int64_t format, std::int64_t mode,
                                     const at::Tensor& accumulator);

}  // namespace telens::ops
