#include "core/kernels/cuda/quantize/dequantize.cuh"

#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/quantize/launchers.h"

namespace telens::cuda {
namespace {

template <typename Input, typename Output, int width>
__global__ void __launch_bounds__(kThreads) dequantize_kernel(DequantizeArguments arguments) {
  dequantize<Input, Output, width>(arguments, GpuThread());
}

}  // namespace

cudaError_t launch_dequantize(const DequantizeArguments& arguments, FormatId input, FormatId output,
                              const LaunchContext& context) {
  if (arguments.size == 0) return cudaSuccess;
  return dispatch_fp8(input, [&]<typename Input>() {
    return dispatch_high_precision(output, [&]<typename Output>() {
      constexpr int kWidth = kPackOf<typename Output::Bits>;
      constexpr std::int64_t kTile = get_tile(kWidth, kDequantizeUnroll);
      const unsigned grid = grid_for((arguments.size + kTile - 1) / kTile, 8, context);
      if (is_aligned(arguments.codes, kWidth) && is_aligned(arguments.values, 16)) {
        dequantize_kernel<Input, Output, kWidth><<<grid, kThreads, 0, context.stream>>>(arguments);
      } else {
        dequantize_kernel<Input, Output, 1><<<grid, kThreads, 0, context.stream>>>(arguments);
      }
      return cudaGetLastError();
    });
  });
}

}  // namespace telens::cuda
