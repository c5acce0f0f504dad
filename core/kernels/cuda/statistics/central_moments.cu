#include "core/kernels/cuda/statistics/central_moments.cuh"

#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/statistics/launchers.h"

namespace telens::cuda {
namespace {

template <typename Format>
__global__ void __launch_bounds__(kThreads)
    central_moments_kernel(CentralMomentsArguments arguments, const std::int64_t* gate) {
  if (is_shut(gate)) return;
  __shared__ MergeShared<CentralMoments> shared;
  central_moments<Format>(arguments, GpuThread(), shared);
}

}  // namespace

cudaError_t launch_central_moments(const CentralMomentsArguments& arguments, FormatId format,
                                   const LaunchContext& context) {
  const auto grid = static_cast<unsigned>(central_moments_blocks(arguments.size));
  return dispatch_high_precision(format, [&]<typename Format>() {
    central_moments_kernel<Format><<<grid, kThreads, 0, context.stream>>>(arguments, context.gate);
    return cudaGetLastError();
  });
}

}  // namespace telens::cuda
