#include "core/kernels/cuda/quantize/transpose_codes.cuh"

#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/quantize/launchers.h"

namespace telens::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    transpose_codes_kernel(TransposeCodesArguments arguments) {
  __shared__ TransposeTile shared;
  transpose_codes(arguments, GpuThread(), shared);
}

}  // namespace

cudaError_t launch_transpose_codes(const TransposeCodesArguments& arguments,
                                   const LaunchContext& context) {
  if (arguments.rows == 0 || arguments.columns == 0) return cudaSuccess;
  const unsigned grid =
      grid_for(tiles_of_matrix(arguments.rows, arguments.columns, kTransposeTile), 4, context);
  transpose_codes_kernel<<<grid, kThreads, 0, context.stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace telens::cuda
