#include "core/kernels/cuda/gemm/scale_layouts.cuh"

#include "core/kernels/cuda/gemm/launchers.h"
#include "core/kernels/cuda/launch.cuh"

namespace telens::cuda {
namespace {

__global__ void __launch_bounds__(kThreads) tile_scales_kernel(TileScalesArguments arguments) {
  tile_scales(arguments, GpuThread());
}

__global__ void __launch_bounds__(kThreads) expand_scales_kernel(ExpandScalesArguments arguments) {
  expand_scales(arguments, GpuThread());
}

__global__ void __launch_bounds__(kThreads) pad_scales_kernel(PadScalesArguments arguments) {
  pad_scales(arguments, GpuThread());
}

unsigned make_grid(std::int64_t work, const LaunchContext& context) {
  return grid_for((work + kThreads - 1) / kThreads, 8, context);
}

}  // namespace

cudaError_t launch_tile_scales(const TileScalesArguments& arguments, const LaunchContext& context) {
  const std::int64_t tiles = count_scale_tiles(arguments.matrix.lines, arguments.matrix.blocks);
  if (tiles == 0) return cudaSuccess;
  tile_scales_kernel<<<make_grid(tiles * kScaleTileLines, context), kThreads, 0, context.stream>>>(
      arguments);
  return cudaGetLastError();
}

cudaError_t launch_expand_scales(const ExpandScalesArguments& arguments,
                                 const LaunchContext& context) {
  const std::int64_t tiles = count_scale_tiles(arguments.lines, arguments.blocks);
  if (tiles == 0) return cudaSuccess;
  expand_scales_kernel<<<make_grid(tiles * kScaleTileLines, context), kThreads, 0,
                         context.stream>>>(arguments);
  return cudaGetLastError();
}

cudaError_t launch_pad_scales(const PadScalesArguments& arguments, const LaunchContext& context) {
  const std::int64_t size = arguments.matrix.lines * arguments.padded;
  if (size == 0) return cudaSuccess;
  pad_scales_kernel<<<make_grid(size, context), kThreads, 0, context.stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace telens::cuda
