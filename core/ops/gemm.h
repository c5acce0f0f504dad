// Matrix product of quantized operands.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/formats/format_id.h"
#include "core/formats/scaling_mode.h"

namespace telens::ops {

// One operand: codes [rows, K] (any strides), scales by the scaling mode, format of the codes.
struct GemmOperand {
  const at::Tensor& codes;
  const at::Tensor& scale_inv;
  FormatId format;
};

// out[M, N] = (decode(a) * a.scale_inv)[M, K] x (decode(b) * b.scale_inv)[N, K]^T + bias[N],
// accumulated in FP32 over exact products, rounded once to out_dtype (BF16, FP16 or FP32). bias is
// of out_dtype or undefined. M, N, K may be zero. Throws ShapeError where the shapes do not fit.
at::Tensor gemm(const GemmOperand& a, const GemmOperand& b, ScalingMode mode,
                const at::Tensor& bias, at::ScalarType out_dtype);

}  // namespace telens::ops
