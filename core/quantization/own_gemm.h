// A product that a quantizer brings for its own tensors, in place of the device's.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/base/names.h"
#include "core/quantization/quantized_tensor.h"

namespace telens {

struct OwnGemmCall {
  Gemm gemm;
  // fprop: activation and weight, both rowwise; dgrad: gradient rowwise and weight columnwise;
  // wgrad: gradient and activation, both columnwise. Other orientations may be missing.
  const QuantizedTensor& a;
  const QuantizedTensor& b;
  const at::Tensor& bias;  // fprop alone; undefined: none
  at::ScalarType out_dtype;
  bool split_accumulator;
};

class OwnGemm {
 public:
  virtual ~OwnGemm() = default;

  // fprop: [tokens, out]; dgrad: [tokens, in]; wgrad: [out, in]; of out_dtype. Tokens are not
  // padded, and at least one. Threads may share it.
  virtual at::Tensor multiply(const OwnGemmCall& call) const = 0;
};

}  // namespace telens
