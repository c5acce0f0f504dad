// Launchers of rows to experts and back. Each launches on the stream of its context, allocates
// nothing, waits for nothing, and returns the error of the launch.
#pragma once

#include <cuda_runtime_api.h>

#include "core/formats/format_id.h"
#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/permutation/row_exchange.cuh"

namespace telens::cuda {

// Without weights: bits of any dtype; `width` counts bytes. combine takes one slot.
cudaError_t launch_spread_copies(const RowExchangeArguments& arguments,
                                 const LaunchContext& context);
cudaError_t launch_combine_copies(const RowExchangeArguments& arguments,
                                  const LaunchContext& context);

// `width` counts elements.
cudaError_t launch_spread_products(const RowExchangeArguments& arguments, FormatId format,
                                   const LaunchContext& context);
cudaError_t launch_combine_sums(const RowExchangeArguments& arguments, FormatId format,
                                const LaunchContext& context);
cudaError_t launch_row_products(const RowProductsArguments& arguments, FormatId format,
                                const LaunchContext& context);

}  // namespace telens::cuda
