#include "core/kernels/cuda/quantize/quantize_transpose.cuh"

#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/quantize/launchers.h"

namespace telens::cuda {
namespace {

// Resident thread blocks per multiprocessor. With 8 packs in flight per thread, two blocks request
// 64 KB at once. Three blocks would have to spill registers.
constexpr int kResident = blocks_with(128);

template <typename Input, typename Output>
__global__ void __launch_bounds__(kThreads, kResident)
    quantize_transpose_kernel(QuantizeTransposeArguments arguments) {
  __shared__ TransposeShared shared;
  quantize_transpose<Input, Output>(arguments, GpuThread(), shared);
}

}  // namespace

cudaError_t launch_quantize_transpose(const QuantizeTransposeArguments& arguments, FormatId input,
                                      FormatId output, const LaunchContext& context) {
  if (arguments.rows == 0 || arguments.columns == 0) return cudaSuccess;
  const std::int64_t tiles =
      count_tiles(arguments.rows, kTransposeTile) * count_tiles(arguments.columns, kTransposeTile);
  const unsigned grid = grid_for(tiles, kResident, context);
  return dispatch_high_precision(input, [&]<typename Input>() {
    return dispatch_fp8(output, [&]<typename Output>() {
      quantize_transpose_kernel<Input, Output><<<grid, kThreads, 0, context.stream>>>(arguments);
      return cudaGetLastError();
    });
  });
}

}  // namespace telens::cuda
