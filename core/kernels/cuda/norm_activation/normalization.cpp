// Normalization on CUDA. The gradients of weight and bias are summed over chunks of rows, then over
// the chunks. The chunks depend on the number of rows only.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/norm_activation/launchers.h"
#include "core/ops/normalization_backend.h"

namespace telens::cuda {
namespace {

using ops::NormResult;
using ops::NormShape;
using ops::NormSums;

struct CudaNorms {
  static NormResult normalize(const char* operation, const NormShape& shape, const at::Tensor& x,
                              const at::Tensor& gamma, const at::Tensor& beta, bool centered,
                              double eps);
  static NormSums differentiate(const char* operation, const NormShape& shape,
                                const at::Tensor& grad, const at::Tensor& x,
                                const at::Tensor& gamma, const at::Tensor& mean,
                                const at::Tensor& rstd);
};

NormResult CudaNorms::normalize(const char* operation, const NormShape& shape, const at::Tensor& x,
                                const at::Tensor& gamma, const at::Tensor& beta, bool centered,
                                double eps) {
  const DeviceScope scope(operation, x);
  // Aligned as for a fused cast: the pack width affects the order of the sums.
  const at::Tensor rows = for_packs(x);
  const auto statistic = x.options().dtype(at::kFloat);
  NormResult result{at::empty(x.sizes(), x.options()),
                    centered ? at::empty({shape.rows}, statistic) : at::Tensor(),
                    at::empty({shape.rows}, statistic)};
  const NormArguments arguments{.x = rows.const_data_ptr(),
                                .rows = shape.rows,
                                .columns = shape.columns,
                                .gamma = gamma.const_data_ptr<float>(),
                                .beta = ops::floats_or_null(beta),
                                .eps = static_cast<float>(eps),
                                .y = result.y.mutable_data_ptr(),
                                .mean = ops::mutable_floats_or_null(result.mean),
                                .rstd = result.rstd.mutable_data_ptr<float>(),
                                .scale = nullptr,
                                .format = FormatId::e4m3,
                                .amax = nullptr,
                                .codes = nullptr};
  check_launch(operation, launch_normalize(arguments, ops::norm_format(x), scope.context()));
  return result;
}

NormSums CudaNorms::differentiate(const char* operation, const NormShape& shape,
                                  const at::Tensor& grad, const at::Tensor& x,
                                  const at::Tensor& gamma, const at::Tensor& mean,
                                  const at::Tensor& rstd) {
  check_same_device(operation, {x, grad, gamma, mean, rstd});
  const DeviceScope scope(operation, x);
  const bool centered = mean.defined();
  const at::Tensor x_rows = x.contiguous();
  const at::Tensor grad_rows = grad.contiguous();
  const at::Tensor means = centered ? mean.contiguous() : at::Tensor();
  const at::Tensor rstds = rstd.contiguous();
  const FormatId format = ops::norm_format(x);
  at::Tensor dx = at::empty(x.sizes(), x.options());
  check_launch(operation, launch_normalize_backward({.grad = grad_rows.const_data_ptr(),
                                                     .x = x_rows.const_data_ptr(),
                                                     .rows = shape.rows,
                                                     .columns = shape.columns,
                                                     .gamma = gamma.const_data_ptr<float>(),
                                                     .mean = ops::floats_or_null(means),
                                                     .rstd = rstds.const_data_ptr<float>(),
                                                     .dx = dx.mutable_data_ptr()},
                                                    format, scope.context()));

  const auto [chunk_rows, chunks] = ops::gradient_chunks(shape.rows);
  const at::Tensor dgamma = at::empty({chunks, shape.columns}, gamma.options());
  const at::Tensor dbeta =
      centered ? at::empty({chunks, shape.columns}, gamma.options()) : at::Tensor();
  check_launch(operation,
               launch_norm_parameter_gradients({.grad = grad_rows.const_data_ptr(),
                                                .x = x_rows.const_data_ptr(),
                                                .rows = shape.rows,
                                                .columns = shape.columns,
                                                .chunk_rows = chunk_rows,
                                                .mean = ops::floats_or_null(means),
                                                .rstd = rstds.const_data_ptr<float>(),
                                                .dgamma = dgamma.mutable_data_ptr<float>(),
                                                .dbeta = ops::mutable_floats_or_null(dbeta)},
                                               format, scope.context()));
  return {dx, dgamma.sum(0), centered ? dbeta.sum(0) : at::Tensor()};
}

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  using Operators = telens::ops::NormOperators<telens::cuda::CudaNorms>;
  library.impl("layer_norm_forward", TORCH_FN(Operators::layer_norm_forward));
  library.impl("layer_norm_backward", TORCH_FN(Operators::layer_norm_backward));
  library.impl("rms_norm_forward", TORCH_FN(Operators::rms_norm_forward));
  library.impl("rms_norm_backward", TORCH_FN(Operators::rms_norm_backward));
}
