#include "core/kernels/cuda/quantize/amax.cuh"

#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/quantize/launchers.h"

namespace telens::cuda {
namespace {

template <typename Format, int width, NanInMaximum nan>
__global__ void __launch_bounds__(kThreads)
    amax_kernel(AmaxArguments arguments, const std::int64_t* gate) {
  if (is_shut(gate)) return;
  __shared__ BlockMaximum shared;
  amax<Format, width, nan>(arguments, GpuThread(), shared);
}

template <NanInMaximum nan>
cudaError_t launch(const AmaxArguments& arguments, FormatId format, const LaunchContext& context) {
  if (arguments.size == 0) return cudaSuccess;
  return dispatch_high_precision(format, [&]<typename Format>() {
    constexpr int kWidth = kPackOf<typename Format::Bits>;
    constexpr std::int64_t kTile = get_tile(kWidth, kAmaxUnroll);
    const unsigned grid = grid_for((arguments.size + kTile - 1) / kTile, 8, context);
    const auto kernel = is_aligned(arguments.x, 16) ? amax_kernel<Format, kWidth, nan>
                                                    : amax_kernel<Format, 1, nan>;
    kernel<<<grid, kThreads, 0, context.stream>>>(arguments, context.gate);
    return cudaGetLastError();
  });
}

}  // namespace

cudaError_t launch_amax(const AmaxArguments& arguments, FormatId format,
                        const LaunchContext& context) {
  return launch<NanInMaximum::wins>(arguments, format, context);
}

cudaError_t launch_amax_of_numbers(const AmaxArguments& arguments, FormatId format,
                                   const LaunchContext& context) {
  return launch<NanInMaximum::left_out>(arguments, format, context);
}

}  // namespace telens::cuda
