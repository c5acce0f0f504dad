#include "core/kernels/cuda/statistics/statistics_blocks.cuh"

#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/statistics/launchers.h"

namespace telens::cuda {
namespace {

template <typename Format>
__global__ void __launch_bounds__(kThreads)
    block_ranges_kernel(BlockRangesArguments arguments, const std::int64_t* gate) {
  if (is_shut(gate)) return;
  __shared__ MergeShared<BlockRanges> shared;
  block_ranges<Format>(arguments, GpuThread(), shared);
}

}  // namespace

cudaError_t launch_block_ranges(const BlockRangesArguments& arguments, FormatId format,
                                const LaunchContext& context) {
  return dispatch_high_precision(format, [&]<typename Format>() {
    block_ranges_kernel<Format>
        <<<kBlockRangesGrid, kThreads, 0, context.stream>>>(arguments, context.gate);
    return cudaGetLastError();
  });
}

}  // namespace telens::cuda
