#include "core/kernels/cuda/quantize/block_quantize.cuh"

#include "core/kernels/cuda/blocks/block_launch.cuh"
#include "core/kernels/cuda/quantize/launchers.h"

namespace telens::cuda {
namespace {

template <typename Input, typename Scaling, bool whole>
__global__ void __launch_bounds__(kThreads)
    quantize_lines_kernel(BlockMatrix matrix, BlockOutputs<typename Scaling::ScaleCode> outputs,
                          Scaling scaling) {
  __shared__ LinesShared<Input, Scaling::kBlock> shared;
  quantize_lines<Input, whole>(matrix, outputs, scaling, scaling, GpuThread(), shared);
}

template <typename Input, typename Scaling, bool whole>
__global__ void __launch_bounds__(kThreads)
    quantize_squares_kernel(BlockMatrix matrix, BlockOutputs<typename Scaling::ScaleCode> outputs,
                            Scaling scaling) {
  __shared__ SquaresShared<Scaling::kBlock> shared;
  quantize_squares<Input, whole>(matrix, outputs, scaling, GpuThread(), shared);
}

template <typename Input, typename Scaling, typename Arguments>
cudaError_t launch(const Arguments& arguments, const Scaling& scaling,
                   const LaunchContext& context) {
  const auto& matrix = arguments.matrix;
  const auto& outputs = arguments.outputs;
  return dispatch_whole(is_whole(matrix, outputs), [&]<bool whole>() {
    constexpr auto kSquares = quantize_squares_kernel<Input, Scaling, whole>;
    constexpr auto kLines = quantize_lines_kernel<Input, Scaling, whole>;
    constexpr int kBlock = Scaling::kBlock;
    return arguments.squares
               ? launch_by_tiles<kSquares, kBlock>(matrix, context, matrix, outputs, scaling)
               : launch_by_tiles<kLines, kBlock>(matrix, context, matrix, outputs, scaling);
  });
}

}  // namespace

cudaError_t launch_quantize_mxfp8(const Mxfp8Arguments& arguments, FormatId input, FormatId output,
                                  const LaunchContext& context) {
  if (is_empty(arguments.matrix)) return cudaSuccess;
  return dispatch_high_precision(input, [&]<typename Input>() {
    return dispatch_fp8(output, [&]<typename Output>() {
      return launch<Input>(arguments, Mxfp8Scaling<Output>{arguments.rounding}, context);
    });
  });
}

cudaError_t launch_quantize_fp8_blocks(const Fp8BlockArguments& arguments, FormatId input,
                                       FormatId output, const LaunchContext& context) {
  if (is_empty(arguments.matrix)) return cudaSuccess;
  return dispatch_high_precision(input, [&]<typename Input>() {
    return dispatch_fp8(output, [&]<typename Output>() {
      const Fp8BlockScaling<Output> scaling{arguments.power_of_2_scales, arguments.amax_epsilon,
                                            Input::kMax};
      return launch<Input>(arguments, scaling, context);
    });
  });
}

}  // namespace telens::cuda
