#include "core/kernels/cuda/statistics/statistics.cuh"

#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/statistics/launchers.h"

namespace telens::cuda {
namespace {

// The arguments stay in constant memory. Indexing the casts would otherwise create a local copy,
// which also hides from the compiler that x is in global memory.
template <typename Format>
__global__ void __launch_bounds__(kThreads, kStatisticsResident)
    statistics_kernel(const __grid_constant__ StatisticsArguments arguments,
                      const std::int64_t* gate) {
  if (is_shut(gate)) return;
  __shared__ StatisticsShared shared;
  statistics<Format>(arguments, GpuThread(), shared);
}

__global__ void __launch_bounds__(kThreads)
    merge_statistics_kernel(MergeStatisticsArguments arguments, const std::int64_t* gate) {
  if (is_shut(gate)) return;
  __shared__ MergeStatisticsShared shared;
  merge_statistics(arguments, GpuThread(), shared);
}

}  // namespace

cudaError_t launch_statistics(const StatisticsArguments& arguments, FormatId format,
                              const LaunchContext& context) {
  const auto grid = static_cast<unsigned>(statistics_blocks(arguments.size));
  return dispatch_high_precision(format, [&]<typename Format>() {
    statistics_kernel<Format><<<grid, kThreads, 0, context.stream>>>(arguments, context.gate);
    return cudaGetLastError();
  });
}

cudaError_t launch_merge_statistics(const MergeStatisticsArguments& arguments,
                                    const LaunchContext& context) {
  merge_statistics_kernel<<<1, kThreads, 0, context.stream>>>(arguments, context.gate);
  return cudaGetLastError();
}

}  // namespace telens::cuda
