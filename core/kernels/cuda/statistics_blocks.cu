#include "core/kernels/cuda/statistics_blocks.cuh"

#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/launchers.h"

namespace telens::cuda {
namespace {

template <typename Format>
__global__ void __launch_bounds__(kThreads) block_ranges_kernel(BlockRangesArguments arguments) {
  __shared__ BlockRangesShared shared;
  block_ranges<Format>(arguments, GpuThread(), shared);
}

__global__ void __launch_bounds__(kThreads)
    merge_block_ranges_kernel(MergeBlockRangesArguments arguments) {
  __shared__ BlockRangesShared shared;
  merge_block_ranges(arguments, GpuThread(), shared);
}

}  // namespace

cudaError_t launch_block_ranges(const BlockRangesArguments& arguments, FormatId format,
                                const LaunchContext& context) {
  return dispatch_high_precision(format, [&]<typename Format>() {
    block_ranges_kernel<Format><<<kBlockRangesGrid, kThreads, 0, context.stream>>>(arguments);
    return cudaGetLastError();
  });
}

cudaError_t launch_merge_block_ranges(const MergeBlockRangesArguments& arguments,
                                      const LaunchContext& context) {
  merge_block_ranges_kernel<<<1, kThreads, 0, context.stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace telens::cuda
