// Operators that quantize what they compute without writing it in high precision:
// `telens::layer_norm_quantize`, `rms_norm_quantize`, `activation_quantize` and
// `activation_backward_quantize`; and `bias_gradient`, which the last one contains.
//
// Each gives the bits of its unfused pair, the operator without `_quantize` and
// quantize_fp8(_both): a fused kernel rounds what it computes to x's dtype before it encodes it.
// Devices without such kernels run that pair.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "core/ops/activation.h"
#include "core/ops/normalization.h"
#include "core/ops/quantize.h"

namespace telens::ops {

// A cast whose scale is known before the tensor is.
struct KnownScale {
  at::Tensor scale;  // FP32, 1 element
  at::Tensor amax;   // FP32, 1 element: becomes max(amax, max |y|), NaN if either is; or undefined
  FormatId format = FormatId::e4m3;
  bool columnwise = true;  // the transposed codes are wanted
};

// Codes are those of y as a matrix [numel / size(-1), size(-1)]; `transposed` is undefined where it
// is not wanted.
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

// The codes of the gradient of x, and its sum over rows, of dtype bias_dtype and [size(-1)], where
// one is given.
struct QuantizedGradient {
  OrientedCodes codes;
  at::Tensor dbias;  // undefined without bias_dtype
};
TELENS_EXPORT QuantizedGradient activation_backward_quantize(
    const at::Tensor& grad, const at::Tensor& x, const Activation& activation,
    const KnownScale& cast, std::optional<at::ScalarType> bias_dtype);

// The sum over the rows of a gradient [rows, columns], summed in FP32 and rounded once to dtype:
// [columns]. One order of summation a device, with or without quantizing.
TELENS_EXPORT at::Tensor bias_gradient(const at::Tensor& grad, at::ScalarType dtype);

}  // namespace telens::ops
