// The checks of every backend's normalization kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace telens::ops {

// A normalized tensor as a matrix.
struct NormShape {
  std::int64_t rows;
  std::int64_t columns;  // at least 1
};

NormShape check_norm_forward(const char* operation, const at::Tensor& x, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias);

// mean is undefined for RMS.
NormShape check_norm_backward(const char* operation, const at::Tensor& grad, const at::Tensor& x,
                              const at::Tensor& weight, const at::Tensor& mean,
                              const at::Tensor& rstd);

}  // namespace telens::ops
