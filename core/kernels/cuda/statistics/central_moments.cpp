// `accumulate_central_moments` on CUDA: one read of the tensor, then one block merges the parts.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/statistics/launchers.h"
#include "core/ops/checks.h"
#include "core/ops/statistics_checks.h"
#include "core/ops/statistics_layout.h"

namespace telens::cuda {
namespace {

CentralMoments* moments_in(const at::Tensor& words, std::int64_t first) {
  return reinterpret_cast<CentralMoments*>(words.mutable_data_ptr<std::int64_t>() + first);
}

void accumulate_central_moments_cuda(const at::Tensor& x, at::Tensor& accumulator) {
  constexpr const char* kName = "accumulate_central_moments";
  ops::check_central_moments(x, accumulator);
  const FormatId format = ops::check_high_precision(kName, "x", x.scalar_type());
  const DeviceScope scope(kName, x);
  const at::Tensor dense = x.is_non_overlapping_and_dense() ? x : x.contiguous();
  const std::int64_t blocks = central_moments_blocks(dense.numel());
  const at::Tensor parts = at::empty({blocks, kMomentsWords}, accumulator.options());
  CentralMoments* const of_blocks = moments_in(parts, 0);
  check_launch(kName, launch_central_moments({dense.const_data_ptr(), dense.numel(), of_blocks},
                                             format, scope.context()));
  check_launch(kName, launch_merge(
                          MergeArguments<CentralMoments>{
                              of_blocks, blocks, moments_in(accumulator, kOnePassWords), true},
                          scope.context()));
}

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  library.impl("accumulate_central_moments",
               TORCH_FN(telens::cuda::accumulate_central_moments_cuda));
}
