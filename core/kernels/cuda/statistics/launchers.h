// Launchers of statistics and histograms. Each launches on the stream of its context, does not
// allocate or synchronize, and returns the error of the launch.
#pragma once

#include <cuda_runtime_api.h>

#include "core/formats/format_id.h"
#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/statistics/block_errors.cuh"
#include "core/kernels/cuda/statistics/histogram.cuh"
#include "core/kernels/cuda/statistics/statistics.cuh"
#include "core/kernels/cuda/statistics/statistics_block_casts.cuh"
#include "core/kernels/cuda/statistics/statistics_blocks.cuh"
#include "core/kernels/cuda/statistics/statistics_what_if.cuh"

namespace telens::cuda {

cudaError_t launch_statistics(const StatisticsArguments& arguments, FormatId format,
                              const LaunchContext& context);
cudaError_t launch_merge_statistics(const MergeStatisticsArguments& arguments,
                                    const LaunchContext& context);
cudaError_t launch_central_moments(const CentralMomentsArguments& arguments, FormatId format,
                                   const LaunchContext& context);
cudaError_t launch_block_ranges(const BlockRangesArguments& arguments, FormatId format,
                                const LaunchContext& context);
cudaError_t launch_merge(const MergeArguments<BlockRanges>& arguments,
                         const LaunchContext& context);
cudaError_t launch_merge(const MergeArguments<CentralMoments>& arguments,
                         const LaunchContext& context);
cudaError_t launch_merge(const MergeArguments<CastSums>& arguments, const LaunchContext& context);
cudaError_t launch_merge(const MergeArguments<CopiesDifference>& arguments,
                         const LaunchContext& context);
cudaError_t launch_block_cast_statistics(const BlockCastArguments& arguments,
                                         const BlockCastKind& kind, const LaunchContext& context);
cudaError_t launch_what_if_statistics(const WhatIfArguments& arguments, FormatId input,
                                      const LaunchContext& context);
cudaError_t launch_block_cast_errors(const BlockErrorsArguments& arguments,
                                     const BlockCastKind& kind, const LaunchContext& context);
cudaError_t launch_copies_difference(const CopiesArguments& arguments, FormatId element,
                                     ScalingMode mode, const LaunchContext& context);
cudaError_t launch_exponent_histogram(const HistogramArguments& arguments, FormatId format,
                                      const LaunchContext& context);
cudaError_t launch_code_histogram(const HistogramArguments& arguments,
                                  const LaunchContext& context);

}  // namespace telens::cuda
