// Argument checks of telens::matmul and telens::matmul_accumulate, the same on every device, and
// of what GEMMs add to.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>

namespace telens::ops {

void check_matmul(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias,
                  at::ScalarType out_dtype);
void check_matmul_accumulate(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out);

// Checks the target of an addition of a[M, K] x b[N, K]^T: FP32 [M, N], on the operands' device.
void check_accumulated(std::string_view operation, const at::Tensor& a, const at::Tensor& b,
                       const at::Tensor& out);

}  // namespace telens::ops
