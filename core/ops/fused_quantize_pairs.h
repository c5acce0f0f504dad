// The unfused pairs of the fused operators, with the operators' signatures: for devices without
// fused kernels, and for shapes that fused kernels do not accept.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace telens::ops {

using OptionalTensor = std::optional<at::Tensor>;
using TwoTensors = std::tuple<at::Tensor, at::Tensor>;
using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using FourTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

FourTensors layer_norm_quantize_pair(const at::Tensor& x, const at::Tensor& weight,
                                     const OptionalTensor& bias, double eps,
                                     bool zero_centered_gamma, const at::Tensor& scale,
                                     const OptionalTensor& amax, std::int64_t format,
                                     bool columnwise);
ThreeTensors rms_norm_quantize_pair(const at::Tensor& x, const at::Tensor& weight, double eps,
                                    bool zero_centered_gamma, const at::Tensor& scale,
                                    const OptionalTensor& amax, std::int64_t format,
                                    bool columnwise);
TwoTensors activation_quantize_pair(const at::Tensor& x, c10::string_view activation,
                                    const at::Tensor& scale, const OptionalTensor& amax,
                                    std::int64_t format, bool columnwise);
ThreeTensors activation_backward_quantize_pair(const at::Tensor& grad, const at::Tensor& x,
                                               c10::string_view activation, const at::Tensor& scale,
                                               const OptionalTensor& amax, std::int64_t format,
                                               bool columnwise,
                                               std::optional<at::ScalarType> bias_dtype);

// The checks that every backend runs before it sums.
void check_bias_gradient(const at::Tensor& grad, at::ScalarType dtype);
at::Tensor bias_gradient_by_torch(const at::Tensor& grad, at::ScalarType dtype);

}  // namespace telens::ops
