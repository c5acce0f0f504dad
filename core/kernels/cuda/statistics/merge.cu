#include "core/kernels/cuda/statistics/merge.cuh"

#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/statistics/launchers.h"

namespace telens::cuda {
namespace {

template <typename Sums>
__global__ void __launch_bounds__(kThreads)
    merge_kernel(MergeArguments<Sums> arguments, const std::int64_t* gate) {
  if (is_shut(gate)) return;
  __shared__ MergeShared<Sums> shared;
  merge_parts(arguments, GpuThread(), shared);
}

template <typename Sums>
cudaError_t launch(const MergeArguments<Sums>& arguments, const LaunchContext& context) {
  merge_kernel<<<1, kThreads, 0, context.stream>>>(arguments, context.gate);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_merge(const MergeArguments<BlockRanges>& arguments,
                         const LaunchContext& context) {
  return launch(arguments, context);
}

cudaError_t launch_merge(const MergeArguments<CentralMoments>& arguments,
                         const LaunchContext& context) {
  return launch(arguments, context);
}

cudaError_t launch_merge(const MergeArguments<CastSums>& arguments, const LaunchContext& context) {
  return launch(arguments, context);
}

cudaError_t launch_merge(const MergeArguments<CopiesDifference>& arguments,
                         const LaunchContext& context) {
  return launch(arguments, context);
}

}  // namespace telens::cuda
