#include "core/kernels/cuda/quantize/scaling.cuh"

#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/quantize/launchers.h"

namespace telens::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    scale_from_amax_kernel(ScaleFromAmaxArguments arguments) {
  scale_from_amax(arguments, GpuThread());
}

__global__ void __launch_bounds__(kThreads)
    amax_of_history_kernel(AmaxOfHistoryArguments arguments) {
  amax_of_history(arguments, GpuThread());
}

__global__ void __launch_bounds__(kThreads) update_scale_kernel(UpdateScaleArguments arguments) {
  update_scale(arguments, GpuThread());
}

__global__ void __launch_bounds__(kThreads) advance_history_kernel(AmaxHistory history) {
  advance_history(history, GpuThread());
}

// One block. Without a minimum the compiler aims at more resident blocks than there are windows,
// and spills registers.
__global__ void __launch_bounds__(kThreads, 1)
    update_windows_kernel(const __grid_constant__ UpdateWindowsArguments arguments) {
  update_windows(arguments, GpuThread());
}

}  // namespace

cudaError_t launch_scale_from_amax(const ScaleFromAmaxArguments& arguments,
                                   const LaunchContext& context) {
  if (arguments.size == 0) return cudaSuccess;
  const unsigned grid = grid_for((arguments.size + kThreads - 1) / kThreads, 8, context);
  scale_from_amax_kernel<<<grid, kThreads, 0, context.stream>>>(arguments);
  return cudaGetLastError();
}

cudaError_t launch_amax_of_history(const AmaxOfHistoryArguments& arguments,
                                   const LaunchContext& context) {
  amax_of_history_kernel<<<1, kThreads, 0, context.stream>>>(arguments);
  return cudaGetLastError();
}

cudaError_t launch_update_scale(const UpdateScaleArguments& arguments,
                                const LaunchContext& context) {
  update_scale_kernel<<<1, kThreads, 0, context.stream>>>(arguments);
  return cudaGetLastError();
}

cudaError_t launch_advance_history(const AmaxHistory& history, const LaunchContext& context) {
  advance_history_kernel<<<1, kThreads, 0, context.stream>>>(history);
  return cudaGetLastError();
}

cudaError_t launch_update_windows(const UpdateWindowsArguments& arguments, int windows,
                                  const LaunchContext& context) {
  if (windows == 0) return cudaSuccess;
  update_windows_kernel<<<static_cast<unsigned>(windows), kThreads, 0, context.stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace telens::cuda
