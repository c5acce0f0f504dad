// Launchers of the permutation of token rows to experts and back. Each launches on the stream of
// its context, does not allocate or synchronize, and returns the error of the launch.
#pragma once

#include <cuda_runtime_api.h>

#include "core/formats/format_id.h"
#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/permutation/row_exchange.cuh"

namespace telens::cuda {

// Without weights: copies rows of any dtype; `width` is in bytes. combine requires a single slot.
cudaError_t launch_spread_copies(const RowExchangeArguments& arguments,
                                 const LaunchContext& context);
cudaError_t launch_combine_copies(const RowExchangeArguments& arguments,
                                  const LaunchContext& context);

// `width` is in elements.
cudaError_t launch_spread_products(const RowExchangeArguments& arguments, FormatId format,
                                   const LaunchContext& context);
cudaError_t launch_combine_sums(const RowExchangeArguments& arguments, FormatId format,
                                const LaunchContext& context);
cudaError_t launch_row_products(const RowProductsArguments& arguments, FormatId format,
                                const LaunchContext& context);

}  // namespace telens::cuda
