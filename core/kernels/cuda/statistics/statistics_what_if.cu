#include "core/kernels/cuda/statistics/statistics_what_if.cuh"

#include "core/kernels/cuda/blocks/block_launch.cuh"
#include "core/kernels/cuda/statistics/launchers.h"

namespace telens::cuda {
namespace {

template <typename Input, bool whole>
__global__ void __launch_bounds__(kThreads, kWhatIfResident)
    what_if_statistics_kernel(const __grid_constant__ WhatIfArguments arguments,
                              const std::int64_t* gate) {
  if (is_shut(gate)) return;
  __shared__ WhatIfShared shared;
  what_if_statistics<Input, whole>(arguments, GpuThread(), shared);
}

}  // namespace

cudaError_t launch_what_if_statistics(const WhatIfArguments& arguments, FormatId input,
                                      const LaunchContext& context) {
  const BlockMatrix& x = arguments.x;
  const bool in_packs = x.columns % kColumnsOfThread == 0 && is_aligned(x.x, 16);
  const auto grid = static_cast<unsigned>(what_if_grid(x.rows, x.columns));
  return dispatch_high_precision(input, [&]<typename Input>() {
    return dispatch_whole(in_packs, [&]<bool whole>() {
      what_if_statistics_kernel<Input, whole>
          <<<grid, kThreads, 0, context.stream>>>(arguments, context.gate);
      return cudaGetLastError();
    });
  });
}

}  // namespace telens::cuda
