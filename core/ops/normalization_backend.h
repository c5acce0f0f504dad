// The normalization operators of a backend that can normalize rows and differentiate the result:
// the code that all devices share.
//
// Backend has static
//   NormResult normalize(const char* operation, const NormShape&, const at::Tensor& x,
//                        const at::Tensor& gamma, const at::Tensor& beta, bool centered,
//                        double eps);
//   NormSums differentiate(const char* operation, const NormShape&, const at::Tensor& grad,
//                               const at::Tensor& x, const at::Tensor& gamma,
//                               const at::Tensor& mean, const at::Tensor& rstd);
// beta is undefined if nothing is added; mean is undefined for RMS.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "core/ops/checks.h"
#include "core/ops/normalization.h"

namespace telens::ops {

struct NormResult {
  at::Tensor y;
  at::Tensor mean;  // FP32 [rows]; undefined for RMS
  at::Tensor rstd;  // FP32 [rows]
};

// dgamma and dbeta are sums over the rows, not yet in the parameters' dtype.
struct NormSums {
  at::Tensor dx;
  at::Tensor dgamma;  // FP32 [columns]
  at::Tensor dbeta;   // FP32 [columns]; undefined for RMS
};

// Gradients of gamma and beta are summed over chunks of rows, then over the chunks. The chunks
// depend only on the number of rows: there are enough to fill a device, each with enough rows that
// the partial sums are small compared with the input.
struct NormChunks {
  std::int64_t rows;  // in each part but the last
  std::int64_t count;
};
inline NormChunks gradient_chunks(std::int64_t rows) {
  constexpr std::int64_t kMaxChunks = 64;
  constexpr std::int64_t kMinRows = 16;
  const std::int64_t rows_of_chunk = std::max(kMinRows, (rows + kMaxChunks - 1) / kMaxChunks);
  return {rows_of_chunk, (rows + rows_of_chunk - 1) / rows_of_chunk};
}

inline FormatId norm_format(const at::Tensor& x) {
  return check_high_precision("normalization", "x", x.scalar_type());
}

inline const float* floats_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}
inline float* mutable_floats_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
}

inline at::Tensor norm_parameter(const at::Tensor& parameter) {
  return parameter.to(at::kFloat).contiguous();
}
// The factor that a normalized value is multiplied by.
inline at::Tensor norm_gamma(const at::Tensor& weight, bool zero_centered_gamma) {
  const at::Tensor factor = norm_parameter(weight);
  return zero_centered_gamma ? factor + 1.0 : factor;
}

template <typename Backend>
class NormOperators {
 public:
  static std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_forward(
      const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
      double eps, bool zero_centered_gamma) {
    constexpr auto kName = "layer_norm_forward";
    const NormShape shape = check_norm_forward(kName, x, weight, bias);
    const at::Tensor beta = bias ? norm_parameter(*bias) : at::Tensor();
    const NormResult result = Backend::normalize(
        kName, shape, x, norm_gamma(weight, zero_centered_gamma), beta, /*centered=*/true, eps);
    return {result.y, result.mean, result.rstd};
  }

  static std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(
      const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& mean,
      const at::Tensor& rstd, bool zero_centered_gamma) {
    constexpr auto kName = "layer_norm_backward";
    const NormShape shape = check_norm_backward(kName, grad, x, weight, mean, rstd);
    const NormSums gradients = Backend::differentiate(
        kName, shape, grad, x, norm_gamma(weight, zero_centered_gamma), mean, rstd);
    return {gradients.dx, get_gradient(weight, gradients.dgamma),
            get_gradient(weight, gradients.dbeta)};
  }

  static std::tuple<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x,
                                                             const at::Tensor& weight, double eps,
                                                             bool zero_centered_gamma) {
    constexpr auto kName = "rms_norm_forward";
    const NormShape shape = check_norm_forward(kName, x, weight, std::nullopt);
    const NormResult result = Backend::normalize(
        kName, shape, x, norm_gamma(weight, zero_centered_gamma), {}, /*centered=*/false, eps);
    return {result.y, result.rstd};
  }

  static std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad,
                                                              const at::Tensor& x,
                                                              const at::Tensor& weight,
                                                              const at::Tensor& rstd,
                                                              bool zero_centered_gamma) {
    constexpr auto kName = "rms_norm_backward";
    const NormShape shape = check_norm_backward(kName, grad, x, weight, {}, rstd);
    const NormSums gradients = Backend::differentiate(
        kName, shape, grad, x, norm_gamma(weight, zero_centered_gamma), {}, rstd);
    return {gradients.dx, get_gradient(weight, gradients.dgamma)};
  }

 private:
  // Returns the gradient with the parameter's shape and dtype, rounded once.
  static at::Tensor get_gradient(const at::Tensor& parameter, const at::Tensor& sum) {
    return sum.to(parameter.scalar_type()).view(parameter.sizes());
  }
};

}  // namespace telens::ops
