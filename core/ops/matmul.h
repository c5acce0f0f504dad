// Matrix products of plain operands, for layers and GEMMs in high precision.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>

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

// Argument checks of telens::matmul and telens::matmul_accumulate, the same on every device, and of
// the tensors to which GEMMs add.
void check_matmul(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias,
                  at::ScalarType out_dtype);
void check_matmul_accumulate(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out);

void check_grouped_matmul(const at::Tensor& a, at::TensorList b, at::TensorList bias,
                          at::IntArrayRef rows, const at::Tensor& out);

// Checks the target of an addition of a[M, K] x b[N, K]^T: FP32 [M, N], on the operands' device.
void check_accumulated(std::string_view operation, const at::Tensor& a, const at::Tensor& b,
                       const at::Tensor& out);

// Calls work(part, a's rows, out's rows) for each part that has rows.
template <typename Work>
void for_each_part(const at::Tensor& a, at::IntArrayRef rows, const at::Tensor& out,
                   const Work& work) {
  std::int64_t first = 0;
  for (std::size_t part = 0; part < rows.size(); first += rows[part], ++part) {
    if (rows[part] == 0) continue;
    work(part, a.narrow(0, first, rows[part]), out.narrow(0, first, rows[part]));
  }
}

}  // namespace telens::ops
