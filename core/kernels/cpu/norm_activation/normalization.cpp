// Normalization on the CPU, parallel over rows. The gradients of weight and bias are summed over
// chunks of rows. The chunks depend on the number of rows only, not on the number of threads.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>

#include "core/kernels/cpu/grain.h"
#include "core/kernels/cpu/norm_activation/rows.h"
#include "core/ops/normalization_backend.h"

namespace telens {
namespace {

using ops::NormResult;
using ops::NormShape;
using ops::NormSums;

struct CpuNorms {
  static NormResult normalize(const char* operation, const NormShape& shape, const at::Tensor& x,
                              const at::Tensor& gamma, const at::Tensor& beta, bool centered,
                              double eps);
  static NormSums differentiate(const char* operation, const NormShape& shape,
                                const at::Tensor& grad, const at::Tensor& x,
                                const at::Tensor& gamma, const at::Tensor& mean,
                                const at::Tensor& rstd);
};

NormResult CpuNorms::normalize(const char*, const NormShape& shape, const at::Tensor& x,
                               const at::Tensor& gamma, const at::Tensor& beta, bool centered,
                               double eps) {
  const at::Tensor rows = x.contiguous();
  const auto statistic = x.options().dtype(at::kFloat);
  NormResult result{at::empty(x.sizes(), x.options()),
                    centered ? at::empty({shape.rows}, statistic) : at::Tensor(),
                    at::empty({shape.rows}, statistic)};
  const NormForwardJob job{
      .format = ops::norm_format(x),
      .columns = shape.columns,
      .x = rows.const_data_ptr(),
      .gamma = gamma.const_data_ptr<float>(),
      .beta = ops::floats_or_null(beta),
      .centered = centered,
      .eps = static_cast<float>(eps),
      .y = result.y.mutable_data_ptr(),
      .mean = ops::mutable_floats_or_null(result.mean),
      .rstd = result.rstd.mutable_data_ptr<float>(),
  };
  const std::int64_t grain = std::max<std::int64_t>(1, kernels::kGrain / shape.columns);
  at::parallel_for(0, shape.rows, grain,
                   [&](std::int64_t begin, std::int64_t end) { normalize_rows(job, begin, end); });
  return result;
}

// Sums partial [chunks, columns] to [columns], in chunk order.
at::Tensor sum_of_chunks(const at::Tensor& partial) {
  at::Tensor sum = at::zeros({partial.size(1)}, partial.options());
  for (std::int64_t chunk = 0; chunk < partial.size(0); ++chunk) sum += partial[chunk];
  return sum;
}

NormSums CpuNorms::differentiate(const char*, const NormShape& shape, const at::Tensor& grad,
                                 const at::Tensor& x, const at::Tensor& gamma,
                                 const at::Tensor& mean, const at::Tensor& rstd) {
  const bool centered = mean.defined();
  const at::Tensor x_rows = x.contiguous();
  const at::Tensor grad_rows = grad.contiguous();
  const at::Tensor means = centered ? mean.contiguous() : at::Tensor();
  const at::Tensor rstds = rstd.contiguous();
  at::Tensor dx = at::empty(x.sizes(), x.options());
  const NormBackwardJob job{
      .format = ops::norm_format(x),
      .columns = shape.columns,
      .grad = grad_rows.const_data_ptr(),
      .x = x_rows.const_data_ptr(),
      .gamma = gamma.const_data_ptr<float>(),
      .centered = centered,
      .mean = ops::floats_or_null(means),
      .rstd = rstds.const_data_ptr<float>(),
      .dx = dx.mutable_data_ptr(),
  };
  const auto [chunk_rows, chunks] = ops::gradient_chunks(shape.rows);
  const at::Tensor dgamma = at::zeros({chunks, shape.columns}, gamma.options());
  const at::Tensor dbeta =
      centered ? at::zeros({chunks, shape.columns}, gamma.options()) : at::Tensor();
  float* dgammas = dgamma.mutable_data_ptr<float>();
  float* dbetas = centered ? dbeta.mutable_data_ptr<float>() : nullptr;
  const std::int64_t grain =
      std::max<std::int64_t>(1, kernels::kGrain / (shape.columns * chunk_rows));
  at::parallel_for(0, chunks, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t chunk = begin; chunk < end; ++chunk) {
      const std::int64_t first = chunk * chunk_rows;
      normalize_rows_backward(job, first, std::min(first + chunk_rows, shape.rows),
                              dgammas + chunk * shape.columns,
                              centered ? dbetas + chunk * shape.columns : nullptr);
    }
  });
  return {dx, sum_of_chunks(dgamma), centered ? sum_of_chunks(dbeta) : at::Tensor()};
}

}  // namespace
}  // namespace telens

TORCH_LIBRARY_IMPL(telens, CPU, library) {
  using Operators = telens::ops::NormOperators<telens::CpuNorms>;
  library.impl("layer_norm_forward", Operators::layer_norm_forward);
  library.impl("layer_norm_backward", Operators::layer_norm_backward);
  library.impl("rms_norm_forward", Operators::rms_norm_forward);
  library.impl("rms_norm_backward", Operators::rms_norm_backward);
}
