// Argument checks of telens::matmul and telens::matmul_accumulate, the same on every device, and of
// the tensors to which GEMMs add.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>

namespace telens::ops {

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
