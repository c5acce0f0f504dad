// Matrix products of plain operands, for layers and GEMMs in high precision.
#pragma once

#include <ATen/core/Tensor.h>

namespace telens::ops {

// Computes out[M, N] = a[M, K] x b[N, K]^T + bias[N], accumulated in FP32 (FP64 for Double),
// rounded once to out_dtype. Accepts any strides: fprop, dgrad and wgrad are products of views. a
// and b have out_dtype, or BF16 or FP16 with FP32 output. bias has out_dtype, or is undefined. M,
// N, K may be zero. Not differentiable. Throws ShapeError if an argument does not match.
at::Tensor matmul(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias,
                  at::ScalarType out_dtype);

// Computes one product for each part of a's rows, in one call: out's rows of part i are a's rows of
// part i x b[i][N, K]^T + bias[i], with the bits of matmul. rows: the number of rows in each part,
// M together; an empty part is skipped. bias: empty, or one for each part. out: [M, N], contiguous,
// with the operands' dtype.
void grouped_matmul(const at::Tensor& a, at::TensorList b, at::TensorList bias,
                    at::IntArrayRef rows, const at::Tensor& out);

// Computes out[M, N] += a[M, K] x b[N, K]^T, all in FP32; a and b are both BF16, FP16 or FP32.
void matmul_accumulate(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out);

}  // namespace telens::ops
