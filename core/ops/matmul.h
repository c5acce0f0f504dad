// Matrix products of plain operands: those of layers and GEMMs in high precision.
#pragma once

#include <ATen/core/Tensor.h>

namespace telens::ops {

// out[M, N] = a[M, K] x b[N, K]^T + bias[N], accumulated in FP32 (FP64 for Double), rounded once to
// out_dtype. Any strides: fprop, dgrad and wgrad are products of views. a and b are of out_dtype,
// or of BF16 or FP16 with a FP32 output. bias is of out_dtype, or undefined. M, N, K may be zero.
// Not differentiable. Throws ShapeError where something does not fit.
at::Tensor matmul(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias,
                  at::ScalarType out_dtype);

// As many products as there are parts of a's rows, in one call: out's rows of part i are a's rows
// of part i x b[i][N, K]^T + bias[i], with the bits of matmul. rows: of each part, M together; a
// part of none has no product. bias: none, or one for each part. out: [M, N], contiguous, of the
// operands' dtype.
void grouped_matmul(const at::Tensor& a, at::TensorList b, at::TensorList bias,
                    at::IntArrayRef rows, const at::Tensor& out);

// out[M, N] += a[M, K] x b[N, K]^T, all in FP32; a and b are both BF16, FP16 or FP32.
void matmul_accumulate(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out);

}  // namespace telens::ops
