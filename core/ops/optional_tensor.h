// Optional arguments of operators.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace telens::ops {

// For an argument `Tensor?`: nothing for an undefined tensor.
inline std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

}  // namespace telens::ops
