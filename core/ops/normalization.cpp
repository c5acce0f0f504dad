#include "core/ops/normalization.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/ranges.h>
#include <torch/library.h>

#include <tuple>

#include "core/ops/checks.h"
#include "core/ops/dispatcher.h"

namespace telens::ops {
namespace {

void check_parameter(const char* operation, const char* name, const at::Tensor& x,
                     const at::Tensor& parameter) {
  check_high_precision(operation, name, parameter.scalar_type());
  if (parameter.device() != x.device()) {
    raise<ShapeError>("{}: {} is on {} and x on {}; move one of them", operation, name,
                      parameter.device().str(), x.device().str());
  }
}

void check_statistic(const char* operation, const char* name, const at::Tensor& statistic,
                     std::int64_t rows) {
  if (statistic.scalar_type() != at::kFloat || statistic.numel() != rows) {
    raise<ShapeError>("{}: {} is {} with {} elements; expected Float with {}, one a row of x",
                      operation, name, c10::toString(statistic.scalar_type()), statistic.numel(),
                      rows);
  }
}

}  // namespace

NormShape check_norm_forward(const char* operation, const at::Tensor& x, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias) {
  check_high_precision(operation, "x", x.scalar_type());
  check_parameter(operation, "weight", x, weight);
  const std::int64_t dims = weight.dim();
  if (dims < 1 || x.dim() < dims || x.sizes().slice(x.dim() - dims) != weight.sizes()) {
    raise<ShapeError>("{}: x is {}; its last sizes must equal the sizes of weight, {}", operation,
                      x.sizes(), weight.sizes());
  }
  if (weight.numel() == 0) {
    raise<ShapeError>("{}: weight is {}; there must be at least one element to normalize",
                      operation, weight.sizes());
  }
  if (bias) {
    check_parameter(operation, "bias", x, *bias);
    if (bias->sizes() != weight.sizes() || bias->scalar_type() != weight.scalar_type()) {
      raise<ShapeError>("{}: bias is {} {}; expected weight's {} {}", operation,
                        c10::toString(bias->scalar_type()), bias->sizes(),
                        c10::toString(weight.scalar_type()), weight.sizes());
    }
  }
  return {.rows = x.numel() / weight.numel(), .columns = weight.numel()};
}

NormShape check_norm_backward(const char* operation, const at::Tensor& grad, const at::Tensor& x,
                              const at::Tensor& weight, const at::Tensor& mean,
                              const at::Tensor& rstd) {
  const NormShape shape = check_norm_forward(operation, x, weight, std::nullopt);
  if (grad.sizes() != x.sizes() || grad.scalar_type() != x.scalar_type()) {
    raise<ShapeError>("{}: grad is {} {}; expected x's {} {}", operation,
                      c10::toString(grad.scalar_type()), grad.sizes(),
                      c10::toString(x.scalar_type()), x.sizes());
  }
  if (mean.defined()) check_statistic(operation, "mean", mean, shape.rows);
  check_statistic(operation, "rstd", rstd, shape.rows);
  return shape;
}

NormOutputs layer_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias, const NormOptions& options) {
  using Signature = std::tuple<at::Tensor, at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double, bool);
  static const auto handle = find_operator<Signature>("telens::layer_norm_forward");
  auto [y, mean, rstd] = handle.call(x, weight, bias, options.eps, options.zero_centered_gamma);
  return {std::move(y), std::move(mean), std::move(rstd)};
}

NormGradients layer_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                  const at::Tensor& weight, const at::Tensor& mean,
                                  const at::Tensor& rstd, bool zero_centered_gamma) {
  using Signature = std::tuple<at::Tensor, at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
      bool);
  static const auto handle = find_operator<Signature>("telens::layer_norm_backward");
  auto [dx, dweight, dbias] = handle.call(grad, x, weight, mean, rstd, zero_centered_gamma);
  return {std::move(dx), std::move(dweight), std::move(dbias)};
}

NormOutputs rms_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                             const NormOptions& options) {
  using Signature =
      std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, double, bool);
  static const auto handle = find_operator<Signature>("telens::rms_norm_forward");
  auto [y, rstd] = handle.call(x, weight, options.eps, options.zero_centered_gamma);
  return {std::move(y), {}, std::move(rstd)};
}

NormGradients rms_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                const at::Tensor& weight, const at::Tensor& rstd,
                                bool zero_centered_gamma) {
  using Signature = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&,
                                                       const at::Tensor&, const at::Tensor&, bool);
  static const auto handle = find_operator<Signature>("telens::rms_norm_backward");
  auto [dx, dweight] = handle.call(grad, x, weight, rstd, zero_centered_gamma);
  return {std::move(dx), std::move(dweight), {}};
}

namespace {

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_forward_meta(
    const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    double /*eps*/, bool /*zero_centered_gamma*/) {
  const NormShape shape = check_norm_forward("layer_norm_forward", x, weight, bias);
  const at::Tensor statistic = at::empty({shape.rows}, x.options().dtype(at::kFloat));
  return {at::empty(x.sizes(), x.options()), statistic, at::empty_like(statistic)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward_meta(
    const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& mean,
    const at::Tensor& rstd, bool /*zero_centered_gamma*/) {
  check_norm_backward("layer_norm_backward", grad, x, weight, mean, rstd);
  return {at::empty(x.sizes(), x.options()), at::empty_like(weight), at::empty_like(weight)};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_forward_meta(const at::Tensor& x,
                                                         const at::Tensor& weight, double /*eps*/,
                                                         bool /*zero_centered_gamma*/) {
  const NormShape shape = check_norm_forward("rms_norm_forward", x, weight, std::nullopt);
  return {at::empty(x.sizes(), x.options()),
          at::empty({shape.rows}, x.options().dtype(at::kFloat))};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward_meta(const at::Tensor& grad,
                                                          const at::Tensor& x,
                                                          const at::Tensor& weight,
                                                          const at::Tensor& rstd,
                                                          bool /*zero_centered_gamma*/) {
  check_norm_backward("rms_norm_backward", grad, x, weight, {}, rstd);
  return {at::empty(x.sizes(), x.options()), at::empty_like(weight)};
}

}  // namespace
}  // namespace telens::ops

TORCH_LIBRARY_IMPL(telens, Meta, library) {
  library.impl("layer_norm_forward", telens::ops::layer_norm_forward_meta);
  library.impl("layer_norm_backward", telens::ops::layer_norm_backward_meta);
  library.impl("rms_norm_forward", telens::ops::rms_norm_forward_meta);
  library.impl("rms_norm_backward", telens::ops::rms_norm_backward_meta);
}
