// Launchers of casts, dequantization, transposition of codes, and the scales of delayed scaling.
// Each launches on the stream of its context, does not allocate or synchronize, and returns the
// error of the launch.
#pragma once

#include <cuda_runtime_api.h>

#include "core/formats/format_id.h"
#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/quantize/amax.cuh"
#include "core/kernels/cuda/quantize/block_quantize.cuh"
#include "core/kernels/cuda/quantize/hadamard.cuh"
#include "core/kernels/cuda/quantize/nvfp4_quantize.cuh"
#include "core/kernels/cuda/quantize/quantize.cuh"
#include "core/kernels/cuda/quantize/quantize_transpose.cuh"
#include "core/kernels/cuda/quantize/scaling.cuh"

namespace telens::cuda {

cudaError_t launch_amax(const AmaxArguments& arguments, FormatId format,
                        const LaunchContext& context);
// Like launch_amax, ignoring NaNs.
cudaError_t launch_amax_of_numbers(const AmaxArguments& arguments, FormatId format,
                                   const LaunchContext& context);
cudaError_t launch_quantize(const QuantizeArguments& arguments, FormatId input, FormatId output,
                            const LaunchContext& context);
cudaError_t launch_quantize_transpose(const QuantizeTransposeArguments& arguments, FormatId input,
                                      FormatId output, const LaunchContext& context);
cudaError_t launch_transpose_codes(const TransposeCodesArguments& arguments,
                                   const LaunchContext& context);
cudaError_t launch_dequantize(const DequantizeArguments& arguments, FormatId input, FormatId output,
                              const LaunchContext& context);
cudaError_t launch_quantize_mxfp8(const Mxfp8Arguments& arguments, FormatId input, FormatId output,
                                  const LaunchContext& context);
cudaError_t launch_quantize_fp8_blocks(const Fp8BlockArguments& arguments, FormatId input,
                                       FormatId output, const LaunchContext& context);
cudaError_t launch_quantize_nvfp4(const Nvfp4Arguments& arguments, FormatId input,
                                  const LaunchContext& context);
cudaError_t launch_quantize_four_over_six(const FourOverSixArguments& arguments,
                                          FourOverSixBlocks blocks, FormatId input,
                                          const LaunchContext& context);
cudaError_t launch_hadamard_transform(const HadamardArguments& arguments, FormatId format,
                                      const LaunchContext& context);
cudaError_t launch_dequantize_blocks(const BlockDequantizeArguments& arguments, FormatId element,
                                     ScalingMode mode, FormatId output,
                                     const LaunchContext& context);
cudaError_t launch_scale_from_amax(const ScaleFromAmaxArguments& arguments,
                                   const LaunchContext& context);
cudaError_t launch_amax_of_history(const AmaxOfHistoryArguments& arguments,
                                   const LaunchContext& context);
cudaError_t launch_update_scale(const UpdateScaleArguments& arguments,
                                const LaunchContext& context);
cudaError_t launch_advance_history(const AmaxHistory& history, const LaunchContext& context);
cudaError_t launch_update_windows(const UpdateWindowsArguments& arguments, int windows,
                                  const LaunchContext& context);

}  // namespace telens::cuda
