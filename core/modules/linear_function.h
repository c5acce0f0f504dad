// The autograd function of a linear layer: fprop forward, dgrad and wgrad backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "core/modules/layer_pass.h"
#include "core/modules/linear_operation.h"

namespace telens {

struct LinearArguments {
  const at::Tensor& input;  // [..., in], of the dtype in which the layer computes
  const Weight& weight;     // [out, in]
  const at::Tensor& bias;   // [out] or undefined
  const LinearCall& call;
  std::shared_ptr<LinearOperation::State> state;
  LayerPass pass;
  const QuantizedTensor* codes = nullptr;  // of the input, which then is a placeholder
};

// Whether the pass multiplies codes in this GEMM, as far as its recipe is concerned.
bool runs_quantized(const LayerPass& pass, Gemm gemm);

// [..., out], of the input's dtype.
at::Tensor apply_linear(const LinearArguments& arguments);

}  // namespace telens
