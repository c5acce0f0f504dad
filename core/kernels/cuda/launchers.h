// The launchers of all kernels: what the bindings call. Each launches on the context's stream,
// allocates nothing, waits for nothing, and returns the error of the launch.
#pragma once

#include <cuda_runtime_api.h>

#include "core/formats/format_id.h"
#include "core/kernels/cuda/activation.cuh"
#include "core/kernels/cuda/amax.cuh"
#include "core/kernels/cuda/block_copies.cuh"
#include "core/kernels/cuda/block_dequantize.cuh"
#include "core/kernels/cuda/block_errors.cuh"
#include "core/kernels/cuda/block_quantize.cuh"
#include "core/kernels/cuda/dequantize.cuh"
#include "core/kernels/cuda/hadamard.cuh"
#include "core/kernels/cuda/histogram.cuh"
#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/normalization.cuh"
#include "core/kernels/cuda/nvfp4_quantize.cuh"
#include "core/kernels/cuda/quantize.cuh"
#include "core/kernels/cuda/quantize_transpose.cuh"
#include "core/kernels/cuda/scale_layouts.cuh"
#include "core/kernels/cuda/scaling.cuh"
#include "core/kernels/cuda/statistics.cuh"
#include "core/kernels/cuda/statistics_block_casts.cuh"
#include "core/kernels/cuda/statistics_blocks.cuh"
#include "core/kernels/cuda/statistics_what_if.cuh"
#include "core/kernels/cuda/transpose_codes.cuh"

namespace telens::cuda {

cudaError_t launch_amax(const AmaxArguments& arguments, FormatId format,
                        const LaunchContext& context);
// The same with NaNs left out.
cudaError_t launch_amax_of_numbers(const AmaxArguments& arguments, FormatId format,
                                   const LaunchContext& context);

cudaError_t launch_quantize(const QuantizeArguments& arguments, FormatId input, FormatId output,
                            const LaunchContext& context);
cudaError_t launch_quantize_transpose(const QuantizeTransposeArguments& arguments, FormatId input,
                                      FormatId output, const LaunchContext& context);
cudaError_t launch_dequantize(const DequantizeArguments& arguments, FormatId input, FormatId output,
                              const LaunchContext& context);

cudaError_t launch_quantize_mxfp8(const Mxfp8Arguments& arguments, FormatId input, FormatId output,
                                  const LaunchContext& context);
cudaError_t launch_quantize_fp8_blocks(const Fp8BlockArguments& arguments, FormatId input,
                                       FormatId output, const LaunchContext& context);

cudaError_t launch_quantize_nvfp4(const Nvfp4Arguments& arguments, FormatId input,
                                  const LaunchContext& context);
cudaError_t launch_hadamard_transform(const HadamardArguments& arguments, FormatId format,
                                      const LaunchContext& context);
cudaError_t launch_dequantize_blocks(const BlockDequantizeArguments& arguments, FormatId element,
                                     ScalingMode mode, FormatId output,
                                     const LaunchContext& context);

cudaError_t launch_transpose_codes(const TransposeCodesArguments& arguments,
                                   const LaunchContext& context);
cudaError_t launch_tile_scales(const TileScalesArguments& arguments, const LaunchContext& context);
cudaError_t launch_expand_scales(const ExpandScalesArguments& arguments,
                                 const LaunchContext& context);
cudaError_t launch_pad_scales(const PadScalesArguments& arguments, const LaunchContext& context);

cudaError_t launch_scale_from_amax(const ScaleFromAmaxArguments& arguments,
                                   const LaunchContext& context);
cudaError_t launch_amax_of_history(const AmaxOfHistoryArguments& arguments,
                                   const LaunchContext& context);
cudaError_t launch_update_scale(const UpdateScaleArguments& arguments,
                                const LaunchContext& context);
cudaError_t launch_advance_history(const AmaxHistory& history, const LaunchContext& context);
cudaError_t launch_update_windows(const UpdateWindowsArguments& arguments, int windows,
                                  const LaunchContext& context);

cudaError_t launch_statistics(const StatisticsArguments& arguments, FormatId format,
                              const LaunchContext& context);
cudaError_t launch_merge_statistics(const MergeStatisticsArguments& arguments,
                                    const LaunchContext& context);
cudaError_t launch_block_ranges(const BlockRangesArguments& arguments, FormatId format,
                                const LaunchContext& context);
cudaError_t launch_merge(const MergeArguments<BlockRanges>& arguments,
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

cudaError_t launch_activation(const ActivationArguments& arguments, FormatId format,
                              ops::ActivationFunction function, const LaunchContext& context);
cudaError_t launch_activation_backward(const ActivationGradientArguments& arguments,
                                       FormatId format, ops::ActivationFunction function,
                                       const LaunchContext& context);

// The codes of both orientations of what launch_normalize, launch_activation and
// launch_activation_backward would store; statistics, format and scale are the arguments'.
cudaError_t launch_normalize_and_cast(const NormArguments& arguments, const TileCast& cast,
                                      FormatId format, const LaunchContext& context);
cudaError_t launch_activation_and_cast(const ActivationArguments& arguments, const TileCast& cast,
                                       FormatId format, ops::ActivationFunction function,
                                       const LaunchContext& context);
cudaError_t launch_activation_backward_and_cast(const ActivationGradientArguments& arguments,
                                                FormatId output, const TileCast& cast,
                                                FormatId format, ops::ActivationFunction function,
                                                const LaunchContext& context);

cudaError_t launch_normalize(const NormArguments& arguments, FormatId format,
                             const LaunchContext& context);
cudaError_t launch_normalize_backward(const NormGradientArguments& arguments, FormatId format,
                                      const LaunchContext& context);
cudaError_t launch_norm_parameter_gradients(const NormParameterGradientArguments& arguments,
                                            FormatId format, const LaunchContext& context);

}  // namespace telens::cuda
