// Normalization on CUDA. The gradients of weight and bias are summed over chunks of rows that
// depend on the number of rows alone, then over the chunks.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/launchers.h"
#include "core/ops/checks.h"
#include "core/ops/normalization_checks.h"

namespace telens::cuda {
namespace {

using ops::NormShape;

// Enough chunks to fill a card, rows enough that the partial sums are little beside what is read.
constexpr std::int64_t kMaxGradientChunks = 64;
constexpr std::int64_t kMinRowsPerChunk = 16;

FormatId format_of(const at::Tensor& x) {
  return ops::check_high_precision("normalization", "x", x.scalar_type());
}

// The factor that a normalized value is multiplied by, in FP32.
at::Tensor gamma_of(const at::Tensor& weight, bool zero_centered_gamma) {
  const at::Tensor gamma = weight.to(at::kFloat).contiguous();
  return zero_centered_gamma ? gamma + 1.0 : gamma;
}

const float* floats_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}
float* mutable_floats_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
}

struct Normalized {
  at::Tensor y;
  at::Tensor mean;  // undefined for RMS
  at::Tensor rstd;
};

Normalized normalize_cuda(const char* operation, const NormShape& shape, const at::Tensor& x,
                          const at::Tensor& gamma, const at::Tensor& beta, bool centered,
                          double eps) {
  const DeviceScope scope(operation, x);
  const at::Tensor rows = x.contiguous();
  const auto statistic = x.options().dtype(at::kFloat);
  Normalized result{at::empty(x.sizes(), x.options()),
                    centered ? at::empty({shape.rows}, statistic) : at::Tensor(),
                    at::empty({shape.rows}, statistic)};
  const NormArguments arguments{.x = rows.const_data_ptr(),
                                .rows = shape.rows,
                                .columns = shape.columns,
                                .gamma = gamma.const_data_ptr<float>(),
                                .beta = floats_or_null(beta),
                                .eps = static_cast<float>(eps),
                                .y = result.y.mutable_data_ptr(),
                                .mean = mutable_floats_or_null(result.mean),
                                .rstd = result.rstd.mutable_data_ptr<float>(),
                                .scale = nullptr,
                                .format = FormatId::e4m3,
                                .amax = nullptr,
                                .codes = nullptr};
  check_launch(operation, launch_normalize(arguments, format_of(x), scope.context()));
  return result;
}

struct Gradients {
  at::Tensor dx;
  at::Tensor dgamma;  // FP32 [columns]
  at::Tensor dbeta;   // FP32 [columns]; undefined for RMS
};

Gradients differentiate_cuda(const char* operation, const NormShape& shape, const at::Tensor& grad,
                             const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& mean,
                             const at::Tensor& rstd) {
  check_same_device(operation, {x, grad, gamma, mean, rstd});
  const DeviceScope scope(operation, x);
  const bool centered = mean.defined();
  const at::Tensor x_rows = x.contiguous();
  const at::Tensor grad_rows = grad.contiguous();
  const at::Tensor means = centered ? mean.contiguous() : at::Tensor();
  const at::Tensor rstds = rstd.contiguous();
  const FormatId format = format_of(x);
  at::Tensor dx = at::empty(x.sizes(), x.options());
  check_launch(operation, launch_normalize_backward({.grad = grad_rows.const_data_ptr(),
                                                     .x = x_rows.const_data_ptr(),
                                                     .rows = shape.rows,
                                                     .columns = shape.columns,
                                                     .gamma = gamma.const_data_ptr<float>(),
                                                     .mean = floats_or_null(means),
                                                     .rstd = rstds.const_data_ptr<float>(),
                                                     .dx = dx.mutable_data_ptr()},
                                                    format, scope.context()));

  const std::int64_t chunk_rows =
      std::max(kMinRowsPerChunk, (shape.rows + kMaxGradientChunks - 1) / kMaxGradientChunks);
  const std::int64_t chunks = (shape.rows + chunk_rows - 1) / chunk_rows;
  const at::Tensor dgamma = at::empty({chunks, shape.columns}, gamma.options());
  const at::Tensor dbeta =
      centered ? at::empty({chunks, shape.columns}, gamma.options()) : at::Tensor();
  check_launch(operation,
               launch_norm_parameter_gradients({.grad = grad_rows.const_data_ptr(),
                                                .x = x_rows.const_data_ptr(),
                                                .rows = shape.rows,
                                                .columns = shape.columns,
                                                .chunk_rows = chunk_rows,
                                                .mean = floats_or_null(means),
                                                .rstd = rstds.const_data_ptr<float>(),
                                                .dgamma = dgamma.mutable_data_ptr<float>(),
                                                .dbeta = mutable_floats_or_null(dbeta)},
                                               format, scope.context()));
  return {dx, dgamma.sum(0), centered ? dbeta.sum(0) : at::Tensor()};
}

// A parameter's gradient: its shape and dtype, rounded once.
at::Tensor as_gradient_of(const at::Tensor& weight, const at::Tensor& sum) {
  return sum.to(weight.scalar_type()).view(weight.sizes());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_forward_cuda(
    const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    double eps, bool zero_centered_gamma) {
  const NormShape shape = ops::check_norm_forward("layer_norm_forward", x, weight, bias);
  const at::Tensor beta = bias ? gamma_of(*bias, false) : at::Tensor();
  auto [y, mean, rstd] = normalize_cuda("layer_norm_forward", shape, x,
                                        gamma_of(weight, zero_centered_gamma), beta, true, eps);
  return {y, mean, rstd};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward_cuda(
    const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& mean,
    const at::Tensor& rstd, bool zero_centered_gamma) {
  const NormShape shape =
      ops::check_norm_backward("layer_norm_backward", grad, x, weight, mean, rstd);
  const auto [dx, dgamma, dbeta] = differentiate_cuda(
      "layer_norm_backward", shape, grad, x, gamma_of(weight, zero_centered_gamma), mean, rstd);
  return {dx, as_gradient_of(weight, dgamma), as_gradient_of(weight, dbeta)};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_forward_cuda(const at::Tensor& x,
                                                         const at::Tensor& weight, double eps,
                                                         bool zero_centered_gamma) {
  const NormShape shape = ops::check_norm_forward("rms_norm_forward", x, weight, std::nullopt);
  auto [y, mean, rstd] = normalize_cuda("rms_norm_forward", shape, x,
                                        gamma_of(weight, zero_centered_gamma), {}, false, eps);
  return {y, rstd};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward_cuda(const at::Tensor& grad,
                                                          const at::Tensor& x,
                                                          const at::Tensor& weight,
                                                          const at::Tensor& rstd,
                                                          bool zero_centered_gamma) {
  const NormShape shape = ops::check_norm_backward("rms_norm_backward", grad, x, weight, {}, rstd);
  const auto [dx, dgamma, dbeta] = differentiate_cuda(
      "rms_norm_backward", shape, grad, x, gamma_of(weight, zero_centered_gamma), {}, rstd);
  return {dx, as_gradient_of(weight, dgamma)};
}

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  library.impl("layer_norm_forward", TORCH_FN(telens::cuda::layer_norm_forward_cuda));
  library.impl("layer_norm_backward", TORCH_FN(telens::cuda::layer_norm_backward_cuda));
  library.impl("rms_norm_forward", TORCH_FN(telens::cuda::rms_norm_forward_cuda));
  library.impl("rms_norm_backward", TORCH_FN(telens::cuda::rms_norm_backward_cuda));
}
