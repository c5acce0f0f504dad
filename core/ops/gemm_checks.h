// Argument checks of telens::gemm, the same on every device.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace telens::ops {

void check_gemm(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias,
                at::ScalarType out_dtype);

}  // namespace telens::ops
