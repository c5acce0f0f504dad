#include "core/kernels/cuda/quantize/four_over_six.cuh"

#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/quantize/launchers.h"

namespace telens::cuda {
namespace {

// Resident thread blocks per multiprocessor.
constexpr int kResident = blocks_with(64);

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
cudaError_t launch_quantize_four_over_six(const FourOverSixArguments& arguments,
                                          FourOverSixBlocks blocks, FormatId input,
                                          const LaunchContext& context) {
  return dispatch_high_precision(input, [&]<typename Input>() {
    const std::int64_t count = get_count(blocks, arguments.matrix);
    const unsigned grid = grid_for((count + kThreads - 1) / kThreads, kResident, context);
    get_kernel<Input>(blocks)<<<grid, kThreads, 0, context.stream>>>(arguments, count);
    return cudaGetLastError();
  });
}

}  // namespace telens::cuda
