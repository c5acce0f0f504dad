#include "core/kernels/cuda/quantize/block_dequantize.cuh"

#include "core/kernels/cuda/blocks/block_launch.cuh"
#include "core/kernels/cuda/quantize/launchers.h"

namespace telens::cuda {
namespace {

// Resident thread blocks per multiprocessor. Matrices with partial tiles need more registers, but
// they are rare.
constexpr int resident_for(bool whole) { return whole ? kDecodeResident : blocks_with(128); }

template <typename Input, typename ScaleFormat, typename Output, CodePairs pairs, bool whole>
__global__ void __launch_bounds__(kThreads, resident_for(whole))
    dequantize_blocks_kernel(BlockDequantizeArguments arguments) {
  dequantize_blocks<Input, ScaleFormat, Output, pairs, whole>(arguments, GpuThread());
}

}  // namespace

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
