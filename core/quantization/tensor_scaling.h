// What the two per-tensor quantizers share: codes of a tensor under one FP32 scale.
#pragma once

#include "core/ops/quantize.h"
#include "core/quantization/quantizer.h"

namespace telens {

// Quantizes with `scale` (FP32, 1 element); `amax` (FP32, 1 element, may be undefined) takes the
// larger of itself and x's amax in the same read.
QuantizedTensor quantize_with_scale(const at::Tensor& x, const at::Tensor& scale,
                                    const at::Tensor& amax, const Quantizer& quantizer);
// The same into the storage of `out`.
void quantize_with_scale_into(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& amax,
                              const Quantizer& quantizer, QuantizedTensor& out);

// What an operator that quantizes under one scale made of a matrix of that dtype.
QuantizedTensor under_scale(ops::OrientedCodes codes, const at::Tensor& scale, FormatId format,
                            at::ScalarType dtype);

}  // namespace telens
