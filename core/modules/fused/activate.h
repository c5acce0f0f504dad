// Activation functions with their gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/modules/layer/fused_cast.h"
#include "core/ops/activation.h"

namespace telens {

// Both may be nullptr; not supported for FP64.
struct ActivationCasts {
  FusedCast* forward = nullptr;  // receives the codes; the result is a placeholder
  c10::intrusive_ptr<GradientCast> backward = {};  // quantizes x's gradient for the layer before
};

// [..., n] -> [..., n]; a gated activation halves the last dimension. Differentiable.
TELENS_EXPORT at::Tensor activate(const ops::Activation& activation, const at::Tensor& x,
                                  const ActivationCasts& casts = {});

}  // namespace telens
