// Launchers of the scale layouts that a GEMM needs. Each launches on the stream of its context,
// does not allocate or synchronize, and returns the error of the launch.
#pragma once

#include <cuda_runtime_api.h>

#include "core/formats/format_id.h"
#include "core/kernels/cuda/gemm/scale_layouts.cuh"
#include "core/kernels/cuda/launch.cuh"

namespace telens::cuda {

cudaError_t launch_tile_scales(const TileScalesArguments& arguments, const LaunchContext& context);
cudaError_t launch_expand_scales(const ExpandScalesArguments& arguments,
                                 const LaunchContext& context);
cudaError_t launch_pad_scales(const PadScalesArguments& arguments, const LaunchContext& context);

}  // namespace telens::cuda
