#include "core/kernels/cuda/norm_activation/normalization.cuh"

#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/norm_activation/launchers.h"

namespace telens::cuda {
namespace {

// Resident thread blocks per multiprocessor: the maximum for the registers that the kernels need
// without spilling.
constexpr int kResident = blocks_with(40);
constexpr int kBackwardResident = blocks_with(48);

template <typename Format, int pack_width>
__global__ void __launch_bounds__(kThreads, kResident) normalize_kernel(NormArguments arguments) {
  __shared__ NormShared shared;
  normalize<Format, pack_width>(arguments, GpuThread(), shared);
}

template <typename Format, int pack_width>
__global__ void __launch_bounds__(kThreads, kBackwardResident)
    normalize_backward_kernel(NormGradientArguments arguments) {
  __shared__ NormShared shared;
  normalize_backward<Format, pack_width>(arguments, GpuThread(), shared);
}

template <typename Format>
__global__ void __launch_bounds__(kThreads)
    norm_parameter_gradients_kernel(NormParameterGradientArguments arguments) {
  norm_parameter_gradients<Format>(arguments, GpuThread());
}

}  // namespace

cudaError_t launch_normalize(const NormArguments& arguments, FormatId format,
                             const LaunchContext& context) {
  if (arguments.rows == 0) return cudaSuccess;
  const unsigned grid = grid_for(arguments.rows, kResident, context);
  return dispatch_high_precision(format, [&]<typename Format>() {
    constexpr int kWidth = kPackOf<typename Format::Bits>;
    const bool fits = arguments.columns % kWidth == 0 && is_aligned(arguments.x, 16) &&
                      is_aligned(arguments.gamma, 16) && is_aligned(arguments.beta, 16) &&
                      is_aligned(arguments.y, 16) && is_aligned(arguments.codes, kWidth);
    if (fits) {
      normalize_kernel<Format, kWidth><<<grid, kThreads, 0, context.stream>>>(arguments);
    } else {
      normalize_kernel<Format, 1><<<grid, kThreads, 0, context.stream>>>(arguments);
    }
    return cudaGetLastError();
  });
}

cudaError_t launch_normalize_backward(const NormGradientArguments& arguments, FormatId format,
                                      const LaunchContext& context) {
  if (arguments.rows == 0) return cudaSuccess;
  const unsigned grid = grid_for(arguments.rows, kBackwardResident, context);
  return dispatch_high_precision(format, [&]<typename Format>() {
    constexpr int kWidth = kPackOf<typename Format::Bits>;
    const bool fits = arguments.columns % kWidth == 0 && is_aligned(arguments.x, 16) &&
                      is_aligned(arguments.gamma, 16) && is_aligned(arguments.grad, 16) &&
                      is_aligned(arguments.dx, 16);
    if (fits) {
      normalize_backward_kernel<Format, kWidth><<<grid, kThreads, 0, context.stream>>>(arguments);
    } else {
      normalize_backward_kernel<Format, 1><<<grid, kThreads, 0, context.stream>>>(arguments);
    }
    return cudaGetLastError();
  });
}

cudaError_t launch_norm_parameter_gradients(const NormParameterGradientArguments& arguments,
                                            FormatId format, const LaunchContext& context) {
  if (arguments.rows == 0) return cudaSuccess;
  const std::int64_t chunks = (arguments.rows + arguments.chunk_rows - 1) / arguments.chunk_rows;
  const std::int64_t groups = (arguments.columns + kThreads - 1) / kThreads;
  return dispatch_high_precision(format, [&]<typename Format>() {
    norm_parameter_gradients_kernel<Format>
        <<<static_cast<unsigned>(chunks * groups), kThreads, 0, context.stream>>>(arguments);
    return cudaGetLastError();
  });
}

}  // namespace telens::cuda
