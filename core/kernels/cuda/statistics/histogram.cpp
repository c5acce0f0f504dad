// `exponent_histogram` and `code_histogram` on CUDA.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/statistics/launchers.h"
#include "core/ops/checks.h"
#include "core/ops/histogram.h"

namespace telens::cuda {
namespace {

// Any dense layout is read without a copy.
at::Tensor dense(const at::Tensor& x) {
  return x.is_non_overlapping_and_dense() ? x : x.contiguous();
}

HistogramArguments get_arguments(const at::Tensor& x, at::Tensor& counts) {
  return {x.const_data_ptr(), x.numel(), counts.mutable_data_ptr<std::int64_t>()};
}

void exponent_histogram_cuda(const at::Tensor& x, at::Tensor& counts) {
  ops::check_exponent_histogram(x, counts);
  const FormatId format = ops::check_high_precision("exponent_histogram", "x", x.scalar_type());
  const DeviceScope scope("exponent_histogram", x);
  const at::Tensor elements = dense(x);
  check_launch("exponent_histogram",
               launch_exponent_histogram(get_arguments(elements, counts), format, scope.context()));
}

void code_histogram_cuda(const at::Tensor& x, at::Tensor& counts) {
  ops::check_code_histogram(x, counts);
  const DeviceScope scope("code_histogram", x);
  const at::Tensor elements = dense(x);
  check_launch("code_histogram",
               launch_code_histogram(get_arguments(elements, counts), scope.context()));
}

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  library.impl("exponent_histogram", TORCH_FN(telens::cuda::exponent_histogram_cuda));
  library.impl("code_histogram", TORCH_FN(telens::cuda::code_histogram_cuda));
}
