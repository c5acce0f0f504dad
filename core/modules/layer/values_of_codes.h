// The values of a tensor that stands for its codes (core/quantization/carried_codes.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "core/base/error.h"

namespace telens {

// In `dtype` (BF16, FP16 or FP32; none: the tensor's), differentiable: the gradient of the values
// is that of the tensor. Another tensor is returned as it is.
TELENS_EXPORT at::Tensor values_of_codes(const at::Tensor& tensor,
                                         std::optional<at::ScalarType> dtype = std::nullopt);

}  // namespace telens
