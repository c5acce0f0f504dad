// Norms and activations fused with quantization, and bias gradients, on CUDA. Shapes that do not
// fit the tiles run the unfused pair. The choice depends on the shape only, so a bias gradient has
// the same order of summation with and without quantization.
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/norm_activation/launchers.h"
#include "core/kernels/cuda/quantize/launchers.h"
#include "core/ops/activation.h"
#include "core/ops/checks.h"
#include "core/ops/fused_quantize.h"
#include "core/ops/normalization_backend.h"
#include "core/ops/quantize.h"

namespace telens::cuda {
namespace {

using ops::FourTensors;
using ops::OptionalTensor;
using ops::ThreeTensors;
using ops::TwoTensors;

constexpr std::int64_t kMultiple = 16;  // tiles require rows and columns in multiples of it

// The size of a matrix of codes.
struct Matrix {
  std::int64_t rows;
  std::int64_t columns;

  bool fits_tiles() const { return rows % kMultiple == 0 && columns % kMultiple == 0; }
};

Matrix flatten_rows(at::IntArrayRef sizes) {
  const std::int64_t columns = sizes.empty() ? 1 : sizes.back();
  return {columns == 0 ? 0 : c10::multiply_integers(sizes) / columns, columns};
}

float* get_floats(const OptionalTensor& tensor) {
  return tensor ? tensor->mutable_data_ptr<float>() : nullptr;
}

// Output tensors of a cast. `transposed` and `sums` are undefined if not requested.
struct CastTensors {
  at::Tensor codes;
  at::Tensor transposed;
  at::Tensor sums;  // [tiles down, columns], FP32

  CastTensors(const at::Tensor& x, const Matrix& matrix, bool columnwise, bool sums_wanted)
      : codes(at::empty({matrix.rows, matrix.columns}, x.options().dtype(at::kByte))) {
    if (columnwise) transposed = at::empty({matrix.columns, matrix.rows}, codes.options());
    if (sums_wanted) sums = empty_sums(x, matrix);
  }

  static at::Tensor empty_sums(const at::Tensor& x, const Matrix& matrix) {
    return at::empty({count_tiles(matrix.rows, kTransposeTile), matrix.columns},
                     x.options().dtype(at::kFloat));
  }

  TileCast cast(const Matrix& matrix, const at::Tensor& scale, const OptionalTensor& amax) const {
    return {matrix.rows,
            matrix.columns,
            scale.const_data_ptr<float>(),
            get_floats(amax),
            codes.mutable_data_ptr<std::uint8_t>(),
            transposed.defined() ? transposed.mutable_data_ptr<std::uint8_t>() : nullptr,
            ops::mutable_floats_or_null(sums)};
  }
};

struct NormCall {
  const char* operation;
  const at::Tensor& x;
  const at::Tensor& weight;
  const OptionalTensor& bias;
  double eps;
  bool zero_centered_gamma;
  const at::Tensor& scale;
  const OptionalTensor& amax;
  FormatId output;
  bool columnwise;
  bool centered;
};

// Both orientations: one kernel for the statistics and one for the codes. Rowwise codes only: one
// kernel.
FourTensors normalize_and_quantize(const NormCall& call, const Matrix& matrix) {
  check_same_device(call.operation, {call.x, call.weight, call.scale});
  const DeviceScope scope(call.operation, call.x);
  const FormatId format = ops::norm_format(call.x);
  const at::Tensor rows = for_packs(call.x);
  const at::Tensor gamma = for_packs(ops::norm_gamma(call.weight, call.zero_centered_gamma));
  const at::Tensor beta = call.bias ? for_packs(ops::norm_parameter(*call.bias)) : at::Tensor();
  const auto statistic = call.x.options().dtype(at::kFloat);
  const at::Tensor mean = call.centered ? at::empty({matrix.rows}, statistic) : at::Tensor();
  const at::Tensor rstd = at::empty({matrix.rows}, statistic);
  const CastTensors made(call.x, matrix, call.columnwise, /*sums_wanted=*/false);
  const TileCast cast = made.cast(matrix, call.scale, call.amax);
  NormArguments arguments{.x = rows.const_data_ptr(),
                          .rows = matrix.rows,
                          .columns = matrix.columns,
                          .gamma = gamma.const_data_ptr<float>(),
                          .beta = ops::floats_or_null(beta),
                          .eps = static_cast<float>(call.eps),
                          .y = nullptr,
                          .mean = ops::mutable_floats_or_null(mean),
                          .rstd = rstd.mutable_data_ptr<float>(),
                          .scale = cast.scale,
                          .format = call.output,
                          .amax = call.columnwise ? nullptr : cast.amax,
                          .codes = call.columnwise ? nullptr : cast.codes};
  check_launch(call.operation, launch_normalize(arguments, format, scope.context()));
  if (call.columnwise) {
    check_launch(call.operation,
                 launch_normalize_and_cast(arguments, cast, format, scope.context()));
  }
  return {made.codes, made.transposed, mean, rstd};
}

// Normalized rows must be rows of the matrix, so the weight is 1-D. Columnwise codes also require a
// matrix that fits the tiles.
bool norm_fits(const at::Tensor& weight, const Matrix& matrix, bool columnwise) {
  return weight.dim() == 1 && (!columnwise || matrix.fits_tiles());
}

FourTensors layer_norm_quantize_cuda(const at::Tensor& x, const at::Tensor& weight,
                                     const OptionalTensor& bias, double eps,
                                     bool zero_centered_gamma, const at::Tensor& scale,
                                     const OptionalTensor& amax, std::int64_t format,
                                     bool columnwise) {
  constexpr auto kName = "layer_norm_quantize";
  ops::check_norm_forward(kName, x, weight, bias);
  const FormatId output = ops::check_quantize_fp8(x, scale, amax, format);
  const Matrix matrix = flatten_rows(x.sizes());
  if (!norm_fits(weight, matrix, columnwise)) {
    return ops::layer_norm_quantize_pair(x, weight, bias, eps, zero_centered_gamma, scale, amax,
                                         format, columnwise);
  }
  return normalize_and_quantize({kName, x, weight, bias, eps, zero_centered_gamma, scale, amax,
                                 output, columnwise, /*centered=*/true},
                                matrix);
}

ThreeTensors rms_norm_quantize_cuda(const at::Tensor& x, const at::Tensor& weight, double eps,
                                    bool zero_centered_gamma, const at::Tensor& scale,
                                    const OptionalTensor& amax, std::int64_t format,
                                    bool columnwise) {
  constexpr auto kName = "rms_norm_quantize";
  ops::check_norm_forward(kName, x, weight, std::nullopt);
  const FormatId output = ops::check_quantize_fp8(x, scale, amax, format);
  const Matrix matrix = flatten_rows(x.sizes());
  if (!norm_fits(weight, matrix, columnwise)) {
    return ops::rms_norm_quantize_pair(x, weight, eps, zero_centered_gamma, scale, amax, format,
                                       columnwise);
  }
  auto [codes, transposed, mean, rstd] =
      normalize_and_quantize({kName, x, weight, std::nullopt, eps, zero_centered_gamma, scale, amax,
                              output, columnwise, /*centered=*/false},
                             matrix);
  return {codes, transposed, rstd};
}

TwoTensors activation_quantize_cuda(const at::Tensor& x, c10::string_view name,
                                    const at::Tensor& scale, const OptionalTensor& amax,
                                    std::int64_t format, bool columnwise) {
  constexpr auto kName = "activation_quantize";
  const ops::Activation& activation = ops::activation_from_name(name);
  const auto sizes = ops::check_activation(x, activation);
  const FormatId output = ops::check_quantize_fp8(x, scale, amax, format);
  const Matrix matrix = flatten_rows(sizes);
  if (columnwise && !matrix.fits_tiles()) {
    return ops::activation_quantize_pair(x, name, scale, amax, format, columnwise);
  }
  const DeviceScope scope(kName, x);
  const FormatId input = ops::check_high_precision(kName, "x", x.scalar_type());
  const at::Tensor source = for_packs(x);
  const CastTensors made(x, matrix, columnwise, /*sums_wanted=*/false);
  const TileCast cast = made.cast(matrix, scale, amax);
  const ActivationArguments arguments{.x = source.const_data_ptr(),
                                      .rows = matrix.rows,
                                      .width = matrix.columns,
                                      .y = nullptr,
                                      .gated = activation.gated,
                                      .scale = cast.scale,
                                      .format = output,
                                      .amax = cast.amax,
                                      .codes = cast.codes};
  check_launch(kName, columnwise ? launch_activation_and_cast(arguments, cast, input,
                                                              activation.function, scope.context())
                                 : launch_activation(arguments, input, activation.function,
                                                     scope.context()));
  return {made.codes, made.transposed};
}

at::Tensor rounded_sum(const at::Tensor& sums, at::ScalarType dtype) {
  return sums.sum(0).to(dtype);
}

ThreeTensors activation_backward_quantize_cuda(const at::Tensor& grad, const at::Tensor& x,
                                               c10::string_view name, const at::Tensor& scale,
                                               const OptionalTensor& amax, std::int64_t format,
                                               bool columnwise,
                                               std::optional<at::ScalarType> bias_dtype) {
  constexpr auto kName = "activation_backward_quantize";
  const ops::Activation& activation = ops::activation_from_name(name);
  ops::check_activation_gradient(grad, x, activation);
  const FormatId output = ops::check_quantize_fp8(x, scale, amax, format);
  const Matrix matrix = flatten_rows(x.sizes());
  if (!matrix.fits_tiles()) {
    return ops::activation_backward_quantize_pair(grad, x, name, scale, amax, format, columnwise,
                                                  bias_dtype);
  }
  check_same_device(kName, {x, grad, scale});
  const DeviceScope scope(kName, x);
  const FormatId input = ops::check_high_precision(kName, "x", x.scalar_type());
  const at::Tensor source = for_packs(x);
  const at::Tensor gradient = for_packs(grad);
  const CastTensors made(x, matrix, columnwise, bias_dtype.has_value());
  const ActivationGradientArguments arguments{
      .grad = gradient.const_data_ptr(),
      .x = source.const_data_ptr(),
      .rows = matrix.rows,
      .width = activation.gated ? matrix.columns / 2 : matrix.columns,
      .gated = activation.gated,
      .dx = nullptr};
  check_launch(
      kName, launch_activation_backward_and_cast(arguments, output, made.cast(matrix, scale, amax),
                                                 input, activation.function, scope.context()));
  return {made.codes, made.transposed,
          bias_dtype ? rounded_sum(made.sums, *bias_dtype) : at::Tensor()};
}

at::Tensor bias_gradient_cuda(const at::Tensor& grad, at::ScalarType dtype) {
  constexpr auto kName = "bias_gradient";
  ops::check_bias_gradient(grad, dtype);
  const Matrix matrix = flatten_rows(grad.sizes());
  if (!matrix.fits_tiles() || grad.numel() == 0 || grad.scalar_type() == at::kDouble) {
    return ops::bias_gradient_by_torch(grad, dtype);
  }
  const DeviceScope scope(kName, grad);
  const FormatId input = ops::check_high_precision(kName, "grad", grad.scalar_type());
  const at::Tensor source = for_packs(grad);
  const at::Tensor sums = CastTensors::empty_sums(grad, matrix);
  check_launch(kName, launch_quantize_transpose({.x = source.const_data_ptr(),
                                                 .rows = matrix.rows,
                                                 .columns = matrix.columns,
                                                 .scale = nullptr,
                                                 .amax = nullptr,
                                                 .codes = nullptr,
                                                 .transposed = nullptr,
                                                 .column_sums = sums.mutable_data_ptr<float>()},
                                                input, FormatId::e4m3, scope.context()));
  return rounded_sum(sums, dtype);
}

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  library.impl("layer_norm_quantize", TORCH_FN(telens::cuda::layer_norm_quantize_cuda));
  library.impl("rms_norm_quantize", TORCH_FN(telens::cuda::rms_norm_quantize_cuda));
  library.impl("activation_quantize", TORCH_FN(telens::cuda::activation_quantize_cuda));
  library.impl("activation_backward_quantize",
               TORCH_FN(telens::cuda::activation_backward_quantize_cuda));
  library.impl("bias_gradient", TORCH_FN(telens::cuda::bias_gradient_cuda));
}
