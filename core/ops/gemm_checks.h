// Argument checks of telens::gemm and telens::gemm_accumulate, the same on every device.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "core/ops/gemm.h"
#include "core/ops/optional_tensor.h"

namespace telens::ops {

// An operand from the schemas' arguments, which must outlive it.
inline GemmOperand operand_of(const at::Tensor& codes, const at::Tensor& scale_inv,
                              const std::optional<at::Tensor>& tensor_scale, std::int64_t format,
                              std::int64_t mode) {
  return {codes, scale_inv, or_undefined(tensor_scale), static_cast<FormatId>(format),
          static_cast<ScalingMode>(mode)};
}

void check_gemm(const GemmOperand& a, const GemmOperand& b, const std::optional<at::Tensor>& bias,
                at::ScalarType out_dtype);
void check_gemm_accumulate(const GemmOperand& a, const GemmOperand& b, const at::Tensor& out);

}  // namespace telens::ops
