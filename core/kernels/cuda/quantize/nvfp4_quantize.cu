#include "core/kernels/cuda/quantize/nvfp4_quantize.cuh"

#include "core/kernels/cuda/blocks/block_launch.cuh"
#include "core/kernels/cuda/quantize/launchers.h"

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

}  // namespace telens::cuda
