// Block quantization: quantizes and dequantizes with one scale per block. These are the operators
// of the same names in the operator library `telens`, called through the dispatcher.
// docs/formats.md has the definitions.
//
// x is a matrix [rows, columns] of BF16, FP16 or FP32, with any size and strides. The rowwise
// result has blocks along x's rows. The columnwise result is the transposed matrix [columns, rows],
// quantized with blocks along *its* rows, and has x's memory order (a transposed view). Bits are
// the same on every device and with any number of threads. A NaN is excluded from the largest
// magnitude of its block and stays NaN, except in NVFP4 (below).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "core/base/error.h"
#include "core/formats/convert.h"
#include "core/formats/format_id.h"
#include "core/formats/scheme.h"

namespace telens::ops {

// The orientations to compute.
struct Orientations {
  bool rowwise = true;
  bool columnwise = true;
};

// One orientation. All tensors are undefined if it was not requested.
struct BlockCodes {
  // uint8 [rows, columns]; NVFP4: [rows, columns / 2 rounded up], the element of even index in the
  // lower four bits.
  at::Tensor codes;
  at::Tensor scale_inv;  // [rows / block height, columns / block length], both rounded up
  // NVFP4: FP32 with 1 element or, if row_scaled, one for each of the codes' rows. Undefined for
  // other modes.
  at::Tensor tensor_scale;
};

struct BlockCodesPair {
  BlockCodes rowwise;
  BlockCodes columnwise;
};

// MXFP8 (OCP MX 1.0): blocks of 32 elements, E8M0 scales (uint8). two_dimensional: blocks of 32x32
// elements share a scale, so that both orientations hold the same values; the scales are still
// stored per 1x32 block.
struct Mxfp8Options {
  ScaleRounding scale_rounding = ScaleRounding::up;
  bool two_dimensional = false;
};
TELENS_EXPORT BlockCodesPair quantize_mxfp8(const at::Tensor& x, FormatId format,
                                            const Mxfp8Options& options,
                                            const Orientations& orientations);

// FP8 in 128-blocks: blocks of 1x128 elements or, if two_dimensional, of 128x128, each with
//   scale = largest value of the format / max(amax, epsilon),
// optionally rounded down to a power of two (core/ops/scale_formula.h). The stored value is 1 /
// scale (FP32).
struct Fp8BlockOptions {
  bool two_dimensional = false;
  bool power_of_2_scales = true;
  float amax_epsilon = 0.0F;
};
TELENS_EXPORT BlockCodesPair quantize_fp8_blocks(const at::Tensor& x, FormatId format,
                                                 const Fp8BlockOptions& options,
                                                 const Orientations& orientations);

// NVFP4: E2M1 in blocks of 16 elements, with E4M3 scales (uint8) and one FP32 scale for the tensor,
// computed from the largest magnitude that is not NaN. A NaN becomes +6, and the scale of its block
// becomes NaN.
struct Nvfp4Options {
  bool two_dimensional = false;  // 16x16 elements share a scale, as with MXFP8
  // The columnwise orientation is computed from hadamard_transform(x) with these signs.
  std::optional<std::uint16_t> hadamard_signs = std::nullopt;
  // Enables stochastic rounding: int64 [2] on x's device, the key and an offset of Philox4x32-10.
  // Element i of x uses word i % 4 of counter (i / 4 low, i / 4 high, 0 rowwise or 1 columnwise,
  // offset).
  at::Tensor random_state = {};
  // FP32 [2] on x's device: the largest magnitudes, rowwise and columnwise, from which the tensor's
  // scales are computed instead of from x. For example, the magnitudes over all parts of a tensor
  // that is quantized in parts.
  at::Tensor amaxes = {};
  // Each row of codes (columnwise: each of x's columns) has a scale instead of the tensor's,
  // computed from its largest number. Excludes all options above.
  bool row_scaled = false;
};
TELENS_EXPORT BlockCodesPair quantize_nvfp4(const at::Tensor& x, const Nvfp4Options& options,
                                            const Orientations& orientations);

// The random Hadamard transform over every 16 rows of x [rows, columns], rows divisible by 16:
//   y[j] = 1/4 sum_i H[i][j] s[i] x[i],  H[i][j] = (-1)^popcount(i & j),  s[i] = -1 if bit i is set
// inverse: computes x from y. Arithmetic is FP32, added in the order of the fast transform
// (neighbors 1, 2, 4, 8 apart), rounded once to x's dtype. The transform is orthogonal: wgrad is
// the same if both operands are transformed.
TELENS_EXPORT at::Tensor hadamard_transform(const at::Tensor& x, std::uint16_t signs,
                                            bool inverse = false);

// Returns float(code) * scale, rounded to FP32, then to dtype (BF16, FP16 or FP32). The scale is
// scale_inv of the element's block, multiplied by tensor_scale (of its row) if that is defined, and
// rounded to FP32. The result has the codes' memory order if the codes are dense. For NVFP4 with an
// odd number of columns, it has one column more.
TELENS_EXPORT at::Tensor dequantize_blocks(const BlockCodes& quantized, FormatId format,
                                           ScalingMode mode, at::ScalarType dtype);

}  // namespace telens::ops
