#include "core/kernels/cuda/norm_activation/fused_quantize.cuh"

#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/norm_activation/launchers.h"

namespace telens::cuda {
namespace {

// Resident thread blocks per multiprocessor. A thread keeps the data of four rows in registers;
// FP32 needs twice as many. An activation keeps one or two packs per row, its gradient three. A
// norm also keeps the factors of its columns.
template <typename Format>
constexpr bool kIsWide = Format::kWidth == 32;
constexpr int kNormResident = blocks_with(128);
template <typename Format>
constexpr int kActivationResident = blocks_with(kIsWide<Format> ? 128 : 80);
template <typename Format>
constexpr int kGradientResident = blocks_with(kIsWide<Format> ? 160 : 128);

template <typename Format>
__global__ void __launch_bounds__(kThreads, kNormResident)
    normalize_and_cast_kernel(NormArguments arguments, TileCast cast) {
  __shared__ TransposeShared shared;
  normalize_and_cast<Format>(arguments, cast, GpuThread(), shared);
}

template <typename Format, typename Function>
__global__ void __launch_bounds__(kThreads, kActivationResident<Format>)
    activate_and_cast_kernel(ActivationArguments arguments, TileCast cast) {
  __shared__ TransposeShared shared;
  activate_and_cast<Format, Function>(arguments, cast, GpuThread(), shared);
}

template <typename Format, typename Function>
__global__ void __launch_bounds__(kThreads, kGradientResident<Format>)
    activate_backward_and_cast_kernel(ActivationGradientArguments arguments, FormatId output,
                                      TileCast cast) {
  __shared__ TransposeShared shared;
  activate_backward_and_cast<Format, Function>(arguments, output, cast, GpuThread(), shared);
}

unsigned make_grid(const TileCast& cast, int resident, const LaunchContext& context) {
  return grid_for(
      count_tiles(cast.rows, kTransposeTile) * count_tiles(cast.columns, kTransposeTile), resident,
      context);
}

}  // namespace

cudaError_t launch_normalize_and_cast(const NormArguments& arguments, const TileCast& cast,
                                      FormatId format, const LaunchContext& context) {
  if (cast.rows == 0 || cast.columns == 0) return cudaSuccess;
  return dispatch_high_precision(format, [&]<typename Format>() {
    normalize_and_cast_kernel<Format>
        <<<make_grid(cast, kNormResident, context), kThreads, 0, context.stream>>>(arguments, cast);
    return cudaGetLastError();
  });
}

cudaError_t launch_activation_and_cast(const ActivationArguments& arguments, const TileCast& cast,
                                       FormatId format, ops::ActivationFunction function,
                                       const LaunchContext& context) {
  if (cast.rows == 0 || cast.columns == 0) return cudaSuccess;
  return dispatch_high_precision(format, [&]<typename Format>() {
    return dispatch_activation(function, [&]<typename Function>() {
      activate_and_cast_kernel<Format, Function>
          <<<make_grid(cast, kActivationResident<Format>, context), kThreads, 0, context.stream>>>(
              arguments, cast);
      return cudaGetLastError();
    });
  });
}

cudaError_t launch_activation_backward_and_cast(const ActivationGradientArguments& arguments,
                                                FormatId output, const TileCast& cast,
                                                FormatId format, ops::ActivationFunction function,
                                                const LaunchContext& context) {
  if (cast.rows == 0 || cast.columns == 0) return cudaSuccess;
  return dispatch_high_precision(format, [&]<typename Format>() {
    return dispatch_activation(function, [&]<typename Function>() {
      activate_backward_and_cast_kernel<Format, Function>
          <<<make_grid(cast, kGradientResident<Format>, context), kThreads, 0, context.stream>>>(
              arguments, output, cast);
      return cudaGetLastError();
    });
  });
}

}  // namespace telens::cuda
