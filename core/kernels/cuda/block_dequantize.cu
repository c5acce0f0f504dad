#include "core/kernels/cuda/block_dequantize.cuh"

#include "core/kernels/cuda/block_launch.cuh"
#include "core/kernels/cuda/launchers.h"

namespace telens::cuda {
namespace {

template <typename Input, typename ScaleFormat, typename Output, CodePairs pairs, bool whole>
__global__ void __launch_bounds__(kThreads)
    dequantize_blocks_kernel(BlockDequantizeArguments arguments) {
  dequantize_blocks<Input, ScaleFormat, Output, pairs, whole>(arguments, GpuThread());
}

template <typename Input, typename ScaleFormat, CodePairs pairs>
cudaError_t launch(const BlockDequantizeArguments& arguments, FormatId output,
                   const LaunchContext& context) {
  const bool is_whole = arguments.columns % kColumnsOfThread == 0 &&
                        is_aligned(arguments.codes, kColumnsOfThread) &&
                        is_aligned(arguments.values, 16);
  const unsigned grid =
      grid_for(tiles_of_matrix(arguments.rows, arguments.columns, kDequantizeTileRows), 3, context);
  return dispatch_high_precision(output, [&]<typename Output>() {
    return dispatch_whole(is_whole, [&]<bool whole>() {
      dequantize_blocks_kernel<Input, ScaleFormat, Output, pairs, whole>
          <<<grid, kThreads, 0, context.stream>>>(arguments);
      return cudaGetLastError();
    });
  });
}

}  // namespace

cudaError_t launch_dequantize_blocks(const BlockDequantizeArguments& arguments, FormatId element,
                                     ScalingMode mode, FormatId output,
                                     const LaunchContext& context) {
  if (arguments.rows == 0 || arguments.columns == 0) return cudaSuccess;
  if (mode == ScalingMode::nvfp4) {
    return arguments.pairs == CodePairs::along_row
               ? launch<E2M1, E4M3, CodePairs::along_row>(arguments, output, context)
               : launch<E2M1, E4M3, CodePairs::down_columns>(arguments, output, context);
  }
  return dispatch_fp8(element, [&]<typename Input>() {
    return mode == ScalingMode::mxfp8
               ? launch<Input, E8M0, CodePairs::none>(arguments, output, context)
               : launch<Input, FP32, CodePairs::none>(arguments, output, context);
  });
}

}  // namespace telens::cuda
