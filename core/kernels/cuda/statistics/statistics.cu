// Launchers of statistics, central moments and blockwise_dynamic_range, and of the merging of their
// parts.
#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/statistics/launchers.h"
#include "core/kernels/cuda/statistics/statistics.cuh"
#include "core/kernels/cuda/statistics/statistics_blocks.cuh"
#include "core/kernels/cuda/statistics/sums.cuh"

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

template <typename Format>
__global__ void __launch_bounds__(kThreads)
    central_moments_kernel(CentralMomentsArguments arguments, const std::int64_t* gate) {
  if (is_shut(gate)) return;
  __shared__ MergeShared<CentralMoments> shared;
  central_moments<Format>(arguments, GpuThread(), shared);
}

template <typename Format>
__global__ void __launch_bounds__(kThreads)
    block_ranges_kernel(BlockRangesArguments arguments, const std::int64_t* gate) {
  if (is_shut(gate)) return;
  __shared__ MergeShared<BlockRanges> shared;
  block_ranges<Format>(arguments, GpuThread(), shared);
}

template <typename Sums>
__global__ void __launch_bounds__(kThreads)
    merge_kernel(MergeArguments<Sums> arguments, const std::int64_t* gate) {
  if (is_shut(gate)) return;
  __shared__ MergeShared<Sums> shared;
  merge_parts(arguments, GpuThread(), shared);
}

template <typename Sums>
cudaError_t launch_merge_kernel(const MergeArguments<Sums>& arguments,
                                const LaunchContext& context) {
  merge_kernel<<<1, kThreads, 0, context.stream>>>(arguments, context.gate);
  return cudaGetLastError();
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

cudaError_t launch_central_moments(const CentralMomentsArguments& arguments, FormatId format,
                                   const LaunchContext& context) {
  const auto grid = static_cast<unsigned>(central_moments_blocks(arguments.size));
  return dispatch_high_precision(format, [&]<typename Format>() {
    central_moments_kernel<Format><<<grid, kThreads, 0, context.stream>>>(arguments, context.gate);
    return cudaGetLastError();
  });
}

cudaError_t launch_block_ranges(const BlockRangesArguments& arguments, FormatId format,
                                const LaunchContext& context) {
  return dispatch_high_precision(format, [&]<typename Format>() {
    block_ranges_kernel<Format>
        <<<kBlockRangesGrid, kThreads, 0, context.stream>>>(arguments, context.gate);
    return cudaGetLastError();
  });
}

cudaError_t launch_merge(const MergeArguments<BlockRanges>& arguments,
                         const LaunchContext& context) {
  return launch_merge_kernel(arguments, context);
}

cudaError_t launch_merge(const MergeArguments<CentralMoments>& arguments,
                         const LaunchContext& context) {
  return launch_merge_kernel(arguments, context);
}

cudaError_t launch_merge(const MergeArguments<CastSums>& arguments, const LaunchContext& context) {
  return launch_merge_kernel(arguments, context);
}

cudaError_t launch_merge(const MergeArguments<CopiesDifference>& arguments,
                         const LaunchContext& context) {
  return launch_merge_kernel(arguments, context);
}

}  // namespace telens::cuda
