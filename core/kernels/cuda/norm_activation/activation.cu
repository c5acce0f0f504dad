#include "core/kernels/cuda/norm_activation/activation.cuh"

#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/norm_activation/launchers.h"

namespace telens::cuda {
namespace {

// Resident thread blocks per multiprocessor.
constexpr int kResident = blocks_with(64);

template <typename Format, typename Function, int pack_width>
__global__ void __launch_bounds__(kThreads, kResident)
    activate_kernel(ActivationArguments arguments) {
  __shared__ BlockMaximum shared;
  activate<Format, Function, pack_width>(arguments, GpuThread(), shared);
}

template <typename Format, typename Function, int pack_width>
__global__ void __launch_bounds__(kThreads, kResident)
    activate_backward_kernel(ActivationGradientArguments arguments) {
  activate_backward<Format, Function, pack_width>(arguments, GpuThread());
}

unsigned make_grid(std::int64_t size, int pack_width, const LaunchContext& context) {
  const std::int64_t per_block = std::int64_t{kThreads} * pack_width;
  return grid_for((size + per_block - 1) / per_block, kResident, context);
}

}  // namespace

cudaError_t launch_activation(const ActivationArguments& arguments, FormatId format,
                              ops::ActivationFunction function, const LaunchContext& context) {
  const std::int64_t size = arguments.rows * arguments.width;
  if (size == 0) return cudaSuccess;
  return dispatch_high_precision(format, [&]<typename Format>() {
    return dispatch_activation(function, [&]<typename Function>() {
      constexpr int kWidth = kPackOf<typename Format::Bits>;
      const bool fits = arguments.width % kWidth == 0 && is_aligned(arguments.x, 16) &&
                        is_aligned(arguments.y, 16) && is_aligned(arguments.codes, kWidth);
      if (fits) {
        activate_kernel<Format, Function, kWidth>
            <<<make_grid(size, kWidth, context), kThreads, 0, context.stream>>>(arguments);
      } else {
        activate_kernel<Format, Function, 1>
            <<<make_grid(size, 1, context), kThreads, 0, context.stream>>>(arguments);
      }
      return cudaGetLastError();
    });
  });
}

cudaError_t launch_activation_backward(const ActivationGradientArguments& arguments,
                                       FormatId format, ops::ActivationFunction function,
                                       const LaunchContext& context) {
  const std::int64_t size = arguments.rows * arguments.width;
  if (size == 0) return cudaSuccess;
  return dispatch_high_precision(format, [&]<typename Format>() {
    return dispatch_activation(function, [&]<typename Function>() {
      constexpr int kWidth = kPackOf<typename Format::Bits>;
      const bool fits = arguments.width % kWidth == 0 && is_aligned(arguments.x, 16) &&
                        is_aligned(arguments.grad, 16) && is_aligned(arguments.dx, 16);
      if (fits) {
        activate_backward_kernel<Format, Function, kWidth>
            <<<make_grid(size, kWidth, context), kThreads, 0, context.stream>>>(arguments);
      } else {
        activate_backward_kernel<Format, Function, 1>
            <<<make_grid(size, 1, context), kThreads, 0, context.stream>>>(arguments);
      }
      return cudaGetLastError();
    });
  });
}

}  // namespace telens::cuda
