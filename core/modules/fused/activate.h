// Activation functions with their gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/modules/layer/fused_cast.h"
#include "core/ops/activation.h"

namespace telens {

// Both may be nullptr; FP64 takes neither.
struct ActivationCasts {
  FusedCast* forward = nullptr;  // the result is a placeholder and the codes are the cast's
  c10::intrusive_ptr<GradientCast> backward = {};  // casts x's gradient, for the layer that made x
};

// [..., n] -> [..., n]; a gated activation halves the last dimension. Differentiable.
TELENS_EXPORT at::Tensor activate(const ops::Activation& activation, const at::Tensor& x,
                                  const ActivationCasts& casts = {});

}  // namespace telens
