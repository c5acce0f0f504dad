// Matrix product of quantized operands.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/formats/format_id.h"
#include "core/formats/scheme.h"

namespace telens::ops {

// One operand: codes [rows, K] (any strides; packed FP4: [rows, K / 2], K even) and scales in the
// layout of its scheme.
struct GemmOperand {
  const at::Tensor& codes;
  const at::Tensor& scale_inv;
  // Packed FP4: FP32 [1] or, with one for each row of the codes, [rows]. Undefined for other
  // formats.
  const at::Tensor& tensor_scale;
  FormatId format;
  ScalingMode mode;
  // For 128-blocks: all scales are known to be powers of two from 2^-127 to 2^127, without a query
  // to the device. The GEMM may then run as a different product of the same value (of 32-blocks on
  // Blackwell). If the promise is broken, that product gives NaN for the blocks with such scales,
  // never a wrong number.
  bool power_of_2_scales = false;
};

// Returns true if a GEMM accepts operands of these modes: the same mode, or 1x128 blocks with
// 128x128 blocks in either order. Two operands with 128x128 blocks are excluded, because hardware
// does not multiply them.
bool can_multiply(ScalingMode a, ScalingMode b);

// Computes out[M, N] = a[M, K] x b[N, K]^T + bias[N] from the operands' values: exact products,
// accumulated in FP32, rounded once to out_dtype (BF16, FP16 or FP32). Scales that are not powers
// of two are applied to the FP32 sums: scales of a tensor or of its rows to the whole sum, scales
// of blocks to the sum over a block of K. A device may multiply the scales of two blocks first and
// treat a product below 2^-126, FP32's smallest normal number, as zero. bias has out_dtype or is
// undefined; the value that is added is bias_of_16_bits(bias). M, N, K may be zero. Throws
// ShapeError if the shapes do not match, UsageError if the modes do not match.
//
// split_accumulator = false lets a device accumulate in fewer bits if that is faster (Hopper's FP8
// products with one scale per tensor); the CPU always accumulates in FP32.
at::Tensor gemm(const GemmOperand& a, const GemmOperand& b, const at::Tensor& bias,
                at::ScalarType out_dtype, bool split_accumulator = true);

// Computes out[M, N] += a[M, K] x b[N, K]^T: the same product, not rounded before it is added. out
// is FP32.
void gemm_accumulate(const GemmOperand& a, const GemmOperand& b, const at::Tensor& out,
                     bool split_accumulator = true);

// Returns the bias as a quantized GEMM adds it on every device: FP32 is rounded to BF16, because
// FP8 products of GPUs accept 16-bit biases; other dtypes are unchanged. Undefined if bias is.
at::Tensor bias_of_16_bits(const at::Tensor& bias);

}  // namespace telens::ops
