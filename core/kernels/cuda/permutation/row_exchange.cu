#include "core/kernels/cuda/permutation/row_exchange.cuh"

#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/permutation/launchers.h"

namespace telens::cuda {
namespace {

// Resident thread blocks per multiprocessor.
constexpr int kResident = blocks_with(48);

template <int pack_width>
__global__ void __launch_bounds__(kThreads, kResident)
    spread_copies_kernel(RowExchangeArguments arguments) {
  spread_copies<pack_width>(arguments, GpuThread());
}

template <int pack_width>
__global__ void __launch_bounds__(kThreads, kResident)
    combine_copies_kernel(RowExchangeArguments arguments) {
  combine_copies<pack_width>(arguments, GpuThread());
}

template <typename Format, int pack_width>
__global__ void __launch_bounds__(kThreads, kResident)
    spread_products_kernel(RowExchangeArguments arguments) {
  spread_products<Format, pack_width>(arguments, GpuThread());
}

template <typename Format, int pack_width>
__global__ void __launch_bounds__(kThreads, kResident)
    combine_sums_kernel(RowExchangeArguments arguments) {
  combine_sums<Format, pack_width>(arguments, GpuThread());
}

template <typename Format, int pack_width>
__global__ void __launch_bounds__(kThreads, kResident)
    row_products_kernel(RowProductsArguments arguments) {
  __shared__ NormShared shared;
  row_products<Format, pack_width>(arguments, GpuThread(), shared);
}

template <typename Arguments>
bool fits(const Arguments& arguments, int pack_width) {
  return arguments.width % pack_width == 0 && is_aligned(arguments.x, 16) &&
         is_aligned(arguments.y, 16);
}

// Calls launch.operator()<pack_width>(grid) with packs of 16 bytes if rows are aligned to them, or
// with packs of 1 element.
template <int pack_width, typename Arguments, typename Launch>
cudaError_t launch_by_token(const Arguments& arguments, const LaunchContext& context,
                            const Launch& launch) {
  if (arguments.places.tokens == 0) return cudaSuccess;
  const unsigned grid = grid_for(arguments.places.tokens, kResident, context);
  if (fits(arguments, pack_width)) {
    launch.template operator()<pack_width>(grid);
  } else {
    launch.template operator()<1>(grid);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_spread_copies(const RowExchangeArguments& arguments,
                                 const LaunchContext& context) {
  return launch_by_token<16>(arguments, context, [&]<int pack_width>(unsigned grid) {
    spread_copies_kernel<pack_width><<<grid, kThreads, 0, context.stream>>>(arguments);
  });
}

cudaError_t launch_combine_copies(const RowExchangeArguments& arguments,
                                  const LaunchContext& context) {
  return launch_by_token<16>(arguments, context, [&]<int pack_width>(unsigned grid) {
    combine_copies_kernel<pack_width><<<grid, kThreads, 0, context.stream>>>(arguments);
  });
}

cudaError_t launch_spread_products(const RowExchangeArguments& arguments, FormatId format,
                                   const LaunchContext& context) {
  return dispatch_high_precision(format, [&]<typename Format>() {
    constexpr int kWidth = kPackOf<typename Format::Bits>;
    return launch_by_token<kWidth>(arguments, context, [&]<int pack_width>(unsigned grid) {
      spread_products_kernel<Format, pack_width><<<grid, kThreads, 0, context.stream>>>(arguments);
    });
  });
}

cudaError_t launch_combine_sums(const RowExchangeArguments& arguments, FormatId format,
                                const LaunchContext& context) {
  return dispatch_high_precision(format, [&]<typename Format>() {
    constexpr int kWidth = kPackOf<typename Format::Bits>;
    return launch_by_token<kWidth>(arguments, context, [&]<int pack_width>(unsigned grid) {
      combine_sums_kernel<Format, pack_width><<<grid, kThreads, 0, context.stream>>>(arguments);
    });
  });
}

cudaError_t launch_row_products(const RowProductsArguments& arguments, FormatId format,
                                const LaunchContext& context) {
  return dispatch_high_precision(format, [&]<typename Format>() {
    constexpr int kWidth = kPackOf<typename Format::Bits>;
    return launch_by_token<kWidth>(arguments, context, [&]<int pack_width>(unsigned grid) {
      row_products_kernel<Format, pack_width><<<grid, kThreads, 0, context.stream>>>(arguments);
    });
  });
}

}  // namespace telens::cuda
