// Optional arguments of operators.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace telens::ops {

// For an argument `Tensor?`: returns nullopt for an undefined tensor.
inline std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// For a kernel with a `Tensor?` argument: returns an undefined tensor for nullopt.
inline const at::Tensor& or_undefined(const std::optional<at::Tensor>& tensor) {
  static const at::Tensor undefined;
  return tensor ? *tensor : undefined;
}

}  // namespace telens::ops
