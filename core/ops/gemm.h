// Matrix product of quantized operands.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/formats/format_id.h"
#include "core/formats/scheme.h"

namespace telens::ops {

// One operand: codes [rows, K] (any strides; packed FP4: [rows, K / 2], K even), scales as its
// scheme lays them out.
struct GemmOperand {
  const at::Tensor& codes;
  const at::Tensor& scale_inv;
  // Packed FP4: FP32 [1] or, one for each row of the codes, [rows]; others: undefined.
  const at::Tensor& tensor_scale;
  FormatId format;
  ScalingMode mode;
  // For 128-blocks: all scales are known to be powers of two from 2^-127 to 2^127, which no device
  // is asked for. A product may then be another one of the same value (of 32-blocks on
  // Blackwell). Where the promise is broken, the blocks under such scales are NaN there, never some
  // other number.
  bool power_of_2_scales = false;
};

// True if a GEMM takes operands of these modes: the same one, or 1x128 blocks with 128x128 blocks
// in either order (two times 128x128: no hardware multiplies those).
bool can_multiply(ScalingMode a, ScalingMode b);

// out[M, N] = a[M, K] x b[N, K]^T + bias[N] of the operands' values, exact products accumulated in
// FP32, rounded once to out_dtype (BF16, FP16 or FP32). Scales that are no powers of two are
// applied to the FP32 sums: those of a tensor or of its rows to the whole sum, those of blocks to
// the sum over a block of K. A device may multiply the scales of two blocks first, and take a
// product of theirs below 2^-126, FP32's smallest normal number, for zero. bias is of out_dtype or
// undefined; bias_of_16_bits(bias) is added. M, N, K may be zero. Throws ShapeError where the
// shapes do not fit, UsageError where the modes do not.
//
// split_accumulator = false lets a device sum in fewer bits where that is faster (Hopper's FP8
// products under one scale a tensor); the CPU always sums in FP32.
at::Tensor gemm(const GemmOperand& a, const GemmOperand& b, const at::Tensor& bias,
                at::ScalarType out_dtype, bool split_accumulator = true);

// out[M, N] += a[M, K] x b[N, K]^T: the same product, not rounded before it is added. out is FP32.
void gemm_accumulate(const GemmOperand& a, const GemmOperand& b, const at::Tensor& out,
                     bool split_accumulator = true);

// The bias as a quantized GEMM adds it on every device: of FP32 rounded to BF16, since FP8 products
// of GPUs take one of 16 bits, else as it is. Undefined if bias is.
at::Tensor bias_of_16_bits(const at::Tensor& bias);

}  // namespace telens::ops
