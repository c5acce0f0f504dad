#include "core/kernels/cuda/quantize/hadamard.cuh"

#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/quantize/launchers.h"

namespace telens::cuda {
namespace {

// Resident thread blocks per multiprocessor, for sixteen rows of two columns and their sums in
// registers.
constexpr int kResident = blocks_with(64);

template <typename Format, int width>
__global__ void __launch_bounds__(kThreads) hadamard_kernel(HadamardArguments arguments) {
  hadamard_transform<Format, width>(arguments, GpuThread());
}

}  // namespace

cudaError_t launch_hadamard_transform(const HadamardArguments& arguments, FormatId format,
                                      const LaunchContext& context) {
  if (arguments.rows == 0 || arguments.columns == 0) return cudaSuccess;
  return dispatch_high_precision(format, [&]<typename Format>() {
    // The largest width at which sixteen rows leave registers for several loads in flight.
    constexpr int kWidth = 2;
    constexpr int kBytes = kWidth * sizeof(typename Format::Bits);
    const bool in_packs = arguments.columns % kWidth == 0 && is_aligned(arguments.x, kBytes) &&
                          is_aligned(arguments.y, kBytes);
    const std::int64_t packs =
        arguments.rows / kHadamardRows * (arguments.columns / (in_packs ? kWidth : 1));
    const unsigned grid = grid_for((packs + kThreads - 1) / kThreads, kResident, context);
    const auto kernel = in_packs ? hadamard_kernel<Format, kWidth> : hadamard_kernel<Format, 1>;
    kernel<<<grid, kThreads, 0, context.stream>>>(arguments);
    return cudaGetLastError();
  });
}

}  // namespace telens::cuda
