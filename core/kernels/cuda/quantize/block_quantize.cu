// Launchers of quantize_mxfp8, quantize_fp8_blocks and dequantize_blocks.
#include "core/kernels/cuda/blocks/block_launch.cuh"
#include "core/kernels/cuda/quantize/block_quantize.cuh"
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

// Resident thread blocks per multiprocessor. Matrices with partial tiles need more registers, but
// they are rare.
constexpr int resident_for(bool whole) { return whole ? kDecodeResident : blocks_with(128); }

template <typename Input, typename ScaleFormat, typename Output, CodePairs pairs, bool whole>
__global__ void __launch_bounds__(kThreads, resident_for(whole))
    dequantize_blocks_kernel(BlockDequantizeArguments arguments) {
  dequantize_blocks<Input, ScaleFormat, Output, pairs, whole>(arguments, GpuThread());
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

cudaError_t launch_dequantize_blocks(const BlockDequantizeArguments& arguments, FormatId element,
                                     ScalingMode mode, FormatId output,
                                     const LaunchContext& context) {
  const CodedMatrix& codes = arguments.codes;
  if (codes.rows == 0 || codes.columns == 0) return cudaSuccess;
  const bool in_packs = is_whole(codes) && is_aligned(arguments.values, 16);
  const unsigned grid = grid_for(tiles_of_matrix(codes.rows, codes.columns, kDecodeTileRows),
                                 resident_for(in_packs), context);
  return dispatch_codes(codes.pairs, element, mode,
                        [&]<typename Input, typename ScaleFormat, CodePairs pairs>() {
                          return dispatch_high_precision(output, [&]<typename Output>() {
                            return dispatch_whole(in_packs, [&]<bool whole>() {
                              dequantize_blocks_kernel<Input, ScaleFormat, Output, pairs, whole>
                                  <<<grid, kThreads, 0, context.stream>>>(arguments);
                              return cudaGetLastError();
                            });
                          });
                        });
}

}  // namespace telens::cuda
