// Layer and RMS normalization as operators `telens::layer_norm_forward`, `layer_norm_backward`,
// `rms_norm_forward` and `rms_norm_backward`. They are not differentiable: see
// core/modules/norm/norm.h.
//
// x is BF16, FP16 or FP32 with the sizes [..., *weight.sizes()], any strides, and possibly no rows.
// weight and bias share a dtype, which may differ from x's (FP32 parameters are not rounded to BF16
// for BF16 activations). Arithmetic is FP32, and every stored value is rounded once: y and dx to
// x's dtype, dweight and dbias to weight's; mean and rstd [rows] stay FP32. Results do not depend
// on the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "core/base/error.h"

namespace telens::ops {

struct NormOptions {
  double eps = 1e-5;
  bool zero_centered_gamma = false;  // the factor is 1 + weight
};

// y = (x - mean) * rstd * weight + bias, with rstd = 1 / sqrt(variance + eps). RMS normalization
// has neither mean nor bias, and rstd = 1 / sqrt(mean(x^2) + eps).
struct NormOutputs {
  at::Tensor y;
  at::Tensor mean;  // undefined for RMS
  at::Tensor rstd;
};

struct NormGradients {
  at::Tensor dx;
  at::Tensor dweight;
  at::Tensor dbias;  // undefined for RMS
};

TELENS_EXPORT NormOutputs layer_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                             const std::optional<at::Tensor>& bias,
                                             const NormOptions& options);
TELENS_EXPORT NormGradients layer_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                                const at::Tensor& weight, const at::Tensor& mean,
                                                const at::Tensor& rstd, bool zero_centered_gamma);

TELENS_EXPORT NormOutputs rms_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                           const NormOptions& options);
TELENS_EXPORT NormGradients rms_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                              const at::Tensor& weight, const at::Tensor& rstd,
                                              bool zero_centered_gamma);

// The checks of every backend's normalization kernels.

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
