// Codes of a tensor under one FP32 scale, for delayed and current scaling.
#pragma once

#include "core/ops/quantize.h"
#include "core/quantization/quantizer.h"

namespace telens {

struct TensorScale {
  at::Tensor scale;  // FP32, 1 element
  at::Tensor amax;   // FP32, 1 element: takes the larger of itself and x's amax; may be undefined
  FormatId format;
};

QuantizedTensor quantize_with_scale(const at::Tensor& x, const TensorScale& scaling, Usage usage);
// The same into the storage of `out`.
void quantize_with_scale_into(const at::Tensor& x, const TensorScale& scaling,
                              QuantizedTensor& out);

// The QuantizedTensor of codes that an operator made of a matrix of that dtype under one scale.
QuantizedTensor under_scale(ops::OrientedCodes codes, const at::Tensor& scale, FormatId format,
                            at::ScalarType dtype);

}  // namespace telens
