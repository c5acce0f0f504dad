#include "core/kernels/cuda/statistics/histogram.cuh"

#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/statistics/launchers.h"

namespace telens::cuda {
namespace {

template <typename Format, int width>
__global__ void __launch_bounds__(kThreads)
    exponent_histogram_kernel(HistogramArguments arguments) {
  __shared__ ExponentTables shared;
  exponent_histogram<Format, width>(arguments, GpuThread(), shared);
}

template <int width>
__global__ void __launch_bounds__(kThreads) code_histogram_kernel(HistogramArguments arguments) {
  code_histogram<width>(arguments, GpuThread());
}

unsigned make_grid(std::int64_t size, int width, const LaunchContext& context) {
  const std::int64_t tile = get_tile(width, kHistogramUnroll);
  return grid_for((size + tile - 1) / tile, 4, context);
}

}  // namespace

cudaError_t launch_exponent_histogram(const HistogramArguments& arguments, FormatId format,
                                      const LaunchContext& context) {
  if (arguments.size == 0) return cudaSuccess;
  return dispatch_high_precision(format, [&]<typename Format>() {
    constexpr int kWidth = kPackOf<typename Format::Bits>;
    const unsigned grid = make_grid(arguments.size, kWidth, context);
    if (is_aligned(arguments.x, 16)) {
      exponent_histogram_kernel<Format, kWidth><<<grid, kThreads, 0, context.stream>>>(arguments);
    } else {
      exponent_histogram_kernel<Format, 1><<<grid, kThreads, 0, context.stream>>>(arguments);
    }
    return cudaGetLastError();
  });
}

cudaError_t launch_code_histogram(const HistogramArguments& arguments,
                                  const LaunchContext& context) {
  if (arguments.size == 0) return cudaSuccess;
  constexpr int kWidth = kPackOf<std::uint16_t>;
  const unsigned grid = make_grid(arguments.size, kWidth, context);
  if (is_aligned(arguments.x, 16)) {
    code_histogram_kernel<kWidth><<<grid, kThreads, 0, context.stream>>>(arguments);
  } else {
    code_histogram_kernel<1><<<grid, kThreads, 0, context.stream>>>(arguments);
  }
  return cudaGetLastError();
}

}  // namespace telens::cuda
