// Argument checks of telens::gemm, the same on every device.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "core/ops/gemm.h"

namespace telens::ops {

void check_gemm(const GemmOperand& a, const GemmOperand& b, const std::optional<at::Tensor>& bias,
                at::ScalarType out_dtype);

}  // namespace telens::ops
