#include "core/kernels/cuda/quantize/quantize.cuh"

#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/quantize/launchers.h"

namespace telens::cuda {
namespace {

// Resident thread blocks per multiprocessor. FP16 elements are converted by one instruction each,
// which needs more than 32 registers.
template <typename Input>
constexpr int kQuantizeResident = blocks_with(Input::kId == FormatId::fp16 ? 40 : 32);

template <typename Input, typename Output, int width>
__global__ void __launch_bounds__(kThreads, kQuantizeResident<Input>)
    quantize_kernel(QuantizeArguments arguments) {
  __shared__ BlockMaximum shared;
  quantize<Input, Output, width>(arguments, GpuThread(), shared);
}

}  // namespace

cudaError_t launch_quantize(const QuantizeArguments& arguments, FormatId input, FormatId output,
                            const LaunchContext& context) {
  if (arguments.size == 0) return cudaSuccess;
  return dispatch_high_precision(input, [&]<typename Input>() {
    return dispatch_fp8(output, [&]<typename Output>() {
      constexpr int kWidth = kPackOf<typename Input::Bits>;
      constexpr std::int64_t kTile = get_tile(kWidth, kQuantizeUnroll);
      const unsigned grid =
          grid_for((arguments.size + kTile - 1) / kTile, kQuantizeResident<Input>, context);
      if (is_aligned(arguments.x, 16) && is_aligned(arguments.codes, kWidth)) {
        quantize_kernel<Input, Output, kWidth><<<grid, kThreads, 0, context.stream>>>(arguments);
      } else {
        quantize_kernel<Input, Output, 1><<<grid, kThreads, 0, context.stream>>>(arguments);
      }
      return cudaGetLastError();
    });
  });
}

}  // namespace telens::cuda
