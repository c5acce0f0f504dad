#include "core/ops/fused_quantize.h"

#include <ATen/ops/sum.h>
#include <torch/library.h>

#include <utility>

#include "core/ops/checks.h"
#include "core/ops/dispatcher.h"
#include "core/ops/tensor_utils.h"

namespace telens::ops {
namespace {

at::Tensor as_rows(const at::Tensor& y) {
  if (y.dim() == 2) return y;
  const std::int64_t columns = y.dim() == 0 ? 1 : y.size(-1);
  return y.reshape({columns == 0 ? 0 : y.numel() / columns, columns});
}

// The second half of every pair.
TwoTensors quantize_rows(const char* operation, const at::Tensor& y, const at::Tensor& scale,
                         const OptionalTensor& amax, std::int64_t format, bool columnwise) {
  const FormatId id = check_fp8_format(operation, format);
  if (!columnwise) return {quantize_fp8(as_rows(y), scale, amax, id), at::Tensor()};
  auto [codes, transposed] = quantize_fp8_both(as_rows(y), scale, amax, id);
  return {std::move(codes), std::move(transposed)};
}

}  // namespace

FourTensors layer_norm_quantize_pair(const at::Tensor& x, const at::Tensor& weight,
                                     const OptionalTensor& bias, double eps,
                                     bool zero_centered_gamma, const at::Tensor& scale,
                                     const OptionalTensor& amax, std::int64_t format,
                                     bool columnwise) {
  const NormOutputs norm = layer_norm_forward(x, weight, bias, {eps, zero_centered_gamma});
  auto [codes, transposed] =
      quantize_rows("layer_norm_quantize", norm.y, scale, amax, format, columnwise);
  return {std::move(codes), std::move(transposed), norm.mean, norm.rstd};
}

ThreeTensors rms_norm_quantize_pair(const at::Tensor& x, const at::Tensor& weight, double eps,
                                    bool zero_centered_gamma, const at::Tensor& scale,
                                    const OptionalTensor& amax, std::int64_t format,
                                    bool columnwise) {
  const NormOutputs norm = rms_norm_forward(x, weight, {eps, zero_centered_gamma});
  auto [codes, transposed] =
      quantize_rows("rms_norm_quantize", norm.y, scale, amax, format, columnwise);
  return {std::move(codes), std::move(transposed), norm.rstd};
}

TwoTensors activation_quantize_pair(const at::Tensor& x, c10::string_view activation,
                                    const at::Tensor& scale, const OptionalTensor& amax,
                                    std::int64_t format, bool columnwise) {
  const at::Tensor y = activation_forward(x, activation_from_name(activation));
  return quantize_rows("activation_quantize", y, scale, amax, format, columnwise);
}

ThreeTensors activation_backward_quantize_pair(const at::Tensor& grad, const at::Tensor& x,
                                               c10::string_view activation, const at::Tensor& scale,
                                               const OptionalTensor& amax, std::int64_t format,
                                               bool columnwise,
                                               std::optional<at::ScalarType> bias_dtype) {
  const at::Tensor dx = as_rows(activation_backward(grad, x, activation_from_name(activation)));
  auto [codes, transposed] =
      quantize_rows("activation_backward_quantize", dx, scale, amax, format, columnwise);
  at::Tensor dbias = bias_dtype ? bias_gradient(dx, *bias_dtype) : at::Tensor();
  return {std::move(codes), std::move(transposed), std::move(dbias)};
}

at::Tensor bias_gradient_by_torch(const at::Tensor& grad, at::ScalarType dtype) {
  check_bias_gradient(grad, dtype);
  return grad.sum(0, /*keepdim=*/false, dtype);
}

void check_bias_gradient(const at::Tensor& grad, at::ScalarType dtype) {
  if (grad.dim() != 2) {
    raise<ShapeError>("bias_gradient: grad has {} dimensions; expected [rows, columns]",
                      grad.dim());
  }
  if (!at::isFloatingType(grad.scalar_type()) || !at::isFloatingType(dtype)) {
    raise<ShapeError>("bias_gradient: grad is {} and the sum {}; expected floating-point dtypes",
                      c10::toString(grad.scalar_type()), c10::toString(dtype));
  }
}

QuantizedNorm layer_norm_quantize(const at::Tensor& x, const at::Tensor& weight,
                                  const OptionalTensor& bias, const NormOptions& options,
                                  const KnownScale& cast) {
  static const auto op =
      find_operator<decltype(layer_norm_quantize_pair)>("telens::layer_norm_quantize");
  auto [codes, transposed, mean, rstd] =
      op.call(x, weight, bias, options.eps, options.zero_centered_gamma, cast.scale,
              if_defined(cast.amax), static_cast<std::int64_t>(cast.format), cast.columnwise);
  return {{std::move(codes), std::move(transposed)}, std::move(mean), std::move(rstd)};
}

QuantizedNorm rms_norm_quantize(const at::Tensor& x, const at::Tensor& weight,
                                const NormOptions& options, const KnownScale& cast) {
  static const auto op =
      find_operator<decltype(rms_norm_quantize_pair)>("telens::rms_norm_quantize");
  auto [codes, transposed, rstd] =
      op.call(x, weight, options.eps, options.zero_centered_gamma, cast.scale,
              if_defined(cast.amax), static_cast<std::int64_t>(cast.format), cast.columnwise);
  return {{std::move(codes), std::move(transposed)}, {}, std::move(rstd)};
}

OrientedCodes activation_quantize(const at::Tensor& x, const Activation& activation,
                                  const KnownScale& cast) {
  static const auto op =
      find_operator<decltype(activation_quantize_pair)>("telens::activation_quantize");
  auto [codes, transposed] = op.call(x, activation.name, cast.scale, if_defined(cast.amax),
                                     static_cast<std::int64_t>(cast.format), cast.columnwise);
  return {std::move(codes), std::move(transposed)};
}

QuantizedGradient activation_backward_quantize(const at::Tensor& grad, const at::Tensor& x,
                                               const Activation& activation, const KnownScale& cast,
                                               std::optional<at::ScalarType> bias_dtype) {
  static const auto op = find_operator<decltype(activation_backward_quantize_pair)>(
      "telens::activation_backward_quantize");
  auto [codes, transposed, dbias] =
      op.call(grad, x, activation.name, cast.scale, if_defined(cast.amax),
              static_cast<std::int64_t>(cast.format), cast.columnwise, bias_dtype);
  return {{std::move(codes), std::move(transposed)}, std::move(dbias)};
}

at::Tensor bias_gradient(const at::Tensor& grad, at::ScalarType dtype) {
  static const auto op = find_operator<decltype(bias_gradient_by_torch)>("telens::bias_gradient");
  return op.call(grad, dtype);
}

}  // namespace telens::ops

TORCH_LIBRARY_IMPL(telens, CompositeExplicitAutograd, library) {
  library.impl("layer_norm_quantize", TORCH_FN(telens::ops::layer_norm_quantize_pair));
  library.impl("rms_norm_quantize", TORCH_FN(telens::ops::rms_norm_quantize_pair));
  library.impl("activation_quantize", TORCH_FN(telens::ops::activation_quantize_pair));
  library.impl("activation_backward_quantize",
               TORCH_FN(telens::ops::activation_backward_quantize_pair));
  library.impl("bias_gradient", TORCH_FN(telens::ops::bias_gradient_by_torch));
}
