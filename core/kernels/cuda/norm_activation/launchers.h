// Launchers of norms and activations, with and without a cast. Each launches on the stream of its
// context, does not allocate or synchronize, and returns the error of the launch.
#pragma once

#include <cuda_runtime_api.h>

#include "core/formats/format_id.h"
#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/norm_activation/activation.cuh"
#include "core/kernels/cuda/norm_activation/normalization.cuh"
#include "core/kernels/cuda/quantize/quantize_transpose.cuh"
#include "core/ops/activation_formula.h"

namespace telens::cuda {

cudaError_t launch_activation(const ActivationArguments& arguments, FormatId format,
                              ops::ActivationFunction function, const LaunchContext& context);
cudaError_t launch_activation_backward(const ActivationGradientArguments& arguments,
                                       FormatId format, ops::ActivationFunction function,
                                       const LaunchContext& context);
// Write the codes, in both orientations, of the results of launch_normalize, launch_activation and
// launch_activation_backward. Statistics, format and scale are those in `arguments`.
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
