// Operators that quantize their result without writing it in high precision:
// `telens::layer_norm_quantize`, `rms_norm_quantize`, `activation_quantize` and
// `activation_backward_quantize`; also `bias_gradient`, which the last one contains.
//
// Each gives the same bits as its unfused pair, which is the operator without `_quantize` followed
// by quantize_fp8(_both): a fused kernel rounds its result to x's dtype before encoding. Devices
// without such kernels run the unfused pair.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "core/ops/activation.h"
#include "core/ops/normalization.h"
#include "core/ops/quantize.h"

namespace telens::ops {

// A cast whose scale is known before the tensor is computed.
struct KnownScale {
  at::Tensor scale;  // FP32, 1 element
  // FP32, 1 element: becomes max(amax, max |y|), NaN if either is NaN; may be undefined.
  at::Tensor amax;
  FormatId format = FormatId::e4m3;
  bool columnwise = true;  // whether the transposed codes are requested
};

// The codes of y as a matrix [numel / size(-1), size(-1)]. `transposed` is undefined if it is not
// requested.
struct QuantizedNorm {
  OrientedCodes codes;
  at::Tensor mean;  // undefined for RMS
  at::Tensor rstd;
};
TELENS_EXPORT QuantizedNorm layer_norm_quantize(const at::Tensor& x, const at::Tensor& weight,
                                                const std::optional<at::Tensor>& bias,
                                                const NormOptions& options, const KnownScale& cast);
TELENS_EXPORT QuantizedNorm rms_norm_quantize(const at::Tensor& x, const at::Tensor& weight,
                                              const NormOptions& options, const KnownScale& cast);

TELENS_EXPORT OrientedCodes activation_quantize(const at::Tensor& x, const Activation& activation,
                                                const KnownScale& cast);

// The codes of the gradient of x, and its sum over rows [size(-1)] in bias_dtype, if that is given.
struct QuantizedGradient {
  OrientedCodes codes;
  at::Tensor dbias;  // undefined without bias_dtype
};
TELENS_EXPORT QuantizedGradient activation_backward_quantize(
    const at::Tensor& grad, const at::Tensor& x, const Activation& activation,
    const KnownScale& cast, std::optional<at::ScalarType> bias_dtype);

// Sums a gradient [rows, columns] over its rows in FP32 and rounds once to dtype: [columns]. The
// order of summation is the same with and without quantizing, and may differ only between devices.
TELENS_EXPORT at::Tensor bias_gradient(const at::Tensor& grad, at::ScalarType dtype);

// The unfused pairs of the fused operators, with the operators' signatures: for devices without
// fused kernels, and for shapes that fused kernels do not accept.
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
