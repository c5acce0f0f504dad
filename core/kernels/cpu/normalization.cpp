// Normalization on the CPU: rows in parallel; the gradients of weight and bias are summed over
// chunks of rows that depend on the number of rows alone, not on the number of threads.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "core/kernels/cpu/normalization_rows.h"
#include "core/ops/checks.h"
#include "core/ops/normalization_checks.h"

namespace telens {
namespace {

using ops::NormShape;

constexpr std::int64_t kElementsPerTask = 16384;  // below that a thread costs more than it saves
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

struct Normalized {
  at::Tensor y;
  at::Tensor mean;
  at::Tensor rstd;
};

Normalized normalize(const NormShape& shape, const at::Tensor& x, const at::Tensor& gamma,
                     const at::Tensor& beta, bool centered, double eps) {
  const at::Tensor rows = x.contiguous();
  const auto statistic = x.options().dtype(at::kFloat);
  Normalized result{at::empty(x.sizes(), x.options()),
                    centered ? at::empty({shape.rows}, statistic) : at::Tensor(),
                    at::empty({shape.rows}, statistic)};
  const NormForwardJob job{
      .format = format_of(x),
      .columns = shape.columns,
      .x = rows.const_data_ptr(),
      .gamma = gamma.const_data_ptr<float>(),
      .beta = floats_or_null(beta),
      .centered = centered,
      .eps = static_cast<float>(eps),
      .y = result.y.mutable_data_ptr(),
      .mean = centered ? result.mean.mutable_data_ptr<float>() : nullptr,
      .rstd = result.rstd.mutable_data_ptr<float>(),
  };
  const std::int64_t grain = std::max<std::int64_t>(1, kElementsPerTask / shape.columns);
  at::parallel_for(0, shape.rows, grain,
                   [&](std::int64_t begin, std::int64_t end) { normalize_rows(job, begin, end); });
  return result;
}

struct Gradients {
  at::Tensor dx;
  at::Tensor dgamma;  // FP32 [columns]
  at::Tensor dbeta;   // FP32 [columns]; undefined for RMS
};

// partial [chunks, columns] -> [columns], added in the order of the chunks.
at::Tensor sum_of_chunks(const at::Tensor& partial) {
  at::Tensor sum = at::zeros({partial.size(1)}, partial.options());
  for (std::int64_t chunk = 0; chunk < partial.size(0); ++chunk) sum += partial[chunk];
  return sum;
}

Gradients differentiate(const NormShape& shape, const at::Tensor& grad, const at::Tensor& x,
                        const at::Tensor& gamma, const at::Tensor& mean, const at::Tensor& rstd) {
  const bool centered = mean.defined();
  const at::Tensor x_rows = x.contiguous();
  const at::Tensor grad_rows = grad.contiguous();
  const at::Tensor means = centered ? mean.contiguous() : at::Tensor();
  const at::Tensor rstds = rstd.contiguous();
  at::Tensor dx = at::empty(x.sizes(), x.options());
  const NormBackwardJob job{
      .format = format_of(x),
      .columns = shape.columns,
      .grad = grad_rows.const_data_ptr(),
      .x = x_rows.const_data_ptr(),
      .gamma = gamma.const_data_ptr<float>(),
      .centered = centered,
      .mean = floats_or_null(means),
      .rstd = rstds.const_data_ptr<float>(),
      .dx = dx.mutable_data_ptr(),
  };
  const std::int64_t chunk_rows =
      std::max(kMinRowsPerChunk, (shape.rows + kMaxGradientChunks - 1) / kMaxGradientChunks);
  const std::int64_t chunks = (shape.rows + chunk_rows - 1) / chunk_rows;
  const at::Tensor dgamma = at::zeros({chunks, shape.columns}, gamma.options());
  const at::Tensor dbeta =
      centered ? at::zeros({chunks, shape.columns}, gamma.options()) : at::Tensor();
  float* dgammas = dgamma.mutable_data_ptr<float>();
  float* dbetas = centered ? dbeta.mutable_data_ptr<float>() : nullptr;
  const std::int64_t grain =
      std::max<std::int64_t>(1, kElementsPerTask / (shape.columns * chunk_rows));
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

// A parameter's gradient: its shape and dtype, rounded once.
at::Tensor as_gradient_of(const at::Tensor& weight, const at::Tensor& sum) {
  return sum.to(weight.scalar_type()).view(weight.sizes());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_forward(
    const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    double eps, bool zero_centered_gamma) {
  const NormShape shape = ops::check_norm_forward("layer_norm_forward", x, weight, bias);
  const at::Tensor beta = bias ? gamma_of(*bias, false) : at::Tensor();
  auto [y, mean, rstd] =
      normalize(shape, x, gamma_of(weight, zero_centered_gamma), beta, true, eps);
  return {y, mean, rstd};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(
    const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& mean,
    const at::Tensor& rstd, bool zero_centered_gamma) {
  const NormShape shape =
      ops::check_norm_backward("layer_norm_backward", grad, x, weight, mean, rstd);
  const auto [dx, dgamma, dbeta] =
      differentiate(shape, grad, x, gamma_of(weight, zero_centered_gamma), mean, rstd);
  return {dx, as_gradient_of(weight, dgamma), as_gradient_of(weight, dbeta)};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                                    double eps, bool zero_centered_gamma) {
  const NormShape shape = ops::check_norm_forward("rms_norm_forward", x, weight, std::nullopt);
  auto [y, mean, rstd] = normalize(shape, x, gamma_of(weight, zero_centered_gamma), {}, false, eps);
  return {y, rstd};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                                     const at::Tensor& weight,
                                                     const at::Tensor& rstd,
                                                     bool zero_centered_gamma) {
  const NormShape shape = ops::check_norm_backward("rms_norm_backward", grad, x, weight, {}, rstd);
  const auto [dx, dgamma, dbeta] =
      differentiate(shape, grad, x, gamma_of(weight, zero_centered_gamma), {}, rstd);
  return {dx, as_gradient_of(weight, dgamma)};
}

}  // namespace
}  // namespace telens

TORCH_LIBRARY_IMPL(telens, CPU, library) {
  library.impl("layer_norm_forward", telens::layer_norm_forward);
  library.impl("layer_norm_backward", telens::layer_norm_backward);
  library.impl("rms_norm_forward", telens::rms_norm_forward);
  library.impl("rms_norm_backward", telens::rms_norm_backward);
}
