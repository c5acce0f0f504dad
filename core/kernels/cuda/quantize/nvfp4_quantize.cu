// Launchers of quantize_nvfp4 and quantize_four_over_six.
#include "core/kernels/cuda/blocks/block_launch.cuh"
#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/quantize/launchers.h"
#include "core/kernels/cuda/quantize/nvfp4_quantize.cuh"

namespace telens::cuda {
namespace {

constexpr int kBlock = Nvfp4Scaling<false>::kBlock;

template <typename Input, bool whole, bool by_chance, bool by_lines>
__global__ void __launch_bounds__(kThreads) quantize_nvfp4_kernel(Nvfp4Arguments arguments) {
  __shared__ LinesShared<Input, kBlock> shared;
  quantize_nvfp4<Input, whole, by_chance, by_lines>(arguments, GpuThread(), shared);
}

template <typename Input, bool whole, bool by_chance>
__global__ void __launch_bounds__(kThreads)
    quantize_nvfp4_squares_kernel(Nvfp4Arguments arguments) {
  __shared__ SquaresShared<kBlock> shared;
  quantize_nvfp4_squares<Input, whole, by_chance>(arguments, GpuThread(), shared);
}

template <typename Input, bool whole, bool by_chance>
cudaError_t launch(const Nvfp4Arguments& arguments, const LaunchContext& context) {
  constexpr auto kSquares = quantize_nvfp4_squares_kernel<Input, whole, by_chance>;
  constexpr auto kLines = quantize_nvfp4_kernel<Input, whole, by_chance, false>;
  return arguments.squares ? launch_by_tiles<kSquares, kBlock>(arguments.matrix, context, arguments)
                           : launch_by_tiles<kLines, kBlock>(arguments.matrix, context, arguments);
}

template <typename Input, bool whole>
cudaError_t launch_by_lines(const Nvfp4Arguments& arguments, const LaunchContext& context) {
  constexpr auto kByLines = quantize_nvfp4_kernel<Input, whole, false, true>;
  return launch_by_tiles<kByLines, kBlock>(arguments.matrix, context, arguments);
}

// Resident thread blocks per multiprocessor.
constexpr int kFourOverSixResident = blocks_with(64);

template <typename Input, FourOverSixBlocks blocks>
__global__ void __launch_bounds__(kThreads)
    four_over_six_kernel(FourOverSixArguments arguments, std::int64_t count) {
  quantize_four_over_six<Input, blocks>(arguments, count, GpuThread());
}

template <typename Input>
auto get_kernel(FourOverSixBlocks blocks) {
  switch (blocks) {
    case FourOverSixBlocks::along_rows:
      return four_over_six_kernel<Input, FourOverSixBlocks::along_rows>;
    case FourOverSixBlocks::down_columns:
      return four_over_six_kernel<Input, FourOverSixBlocks::down_columns>;
    case FourOverSixBlocks::squares:
      break;
  }
  return four_over_six_kernel<Input, FourOverSixBlocks::squares>;
}

}  // namespace

// Also launched for an empty matrix, which has a scale.
cudaError_t launch_quantize_nvfp4(const Nvfp4Arguments& arguments, FormatId input,
                                  const LaunchContext& context) {
  return dispatch_high_precision(input, [&]<typename Input>() {
    return dispatch_whole(is_whole(arguments.matrix, arguments.outputs), [&]<bool whole>() {
      if (arguments.by_lines) return launch_by_lines<Input, whole>(arguments, context);
      return arguments.random_state != nullptr ? launch<Input, whole, true>(arguments, context)
                                               : launch<Input, whole, false>(arguments, context);
    });
  });
}

// Also launched for an empty matrix, which has a scale.
cudaError_t launch_quantize_four_over_six(const FourOverSixArguments& arguments,
                                          FourOverSixBlocks blocks, FormatId input,
                                          const LaunchContext& context) {
  return dispatch_high_precision(input, [&]<typename Input>() {
    const std::int64_t count = get_count(blocks, arguments.matrix);
    const unsigned grid =
        grid_for((count + kThreads - 1) / kThreads, kFourOverSixResident, context);
    get_kernel<Input>(blocks)<<<grid, kThreads, 0, context.stream>>>(arguments, count);
    return cudaGetLastError();
  });
}

}  // namespace telens::cuda
