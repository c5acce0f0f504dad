// Activation functions with their gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/ops/activation.h"

namespace telens {

// [..., n] -> [..., n]; a gated activation halves the last dimension. Differentiable.
TELENS_EXPORT at::Tensor activate(const ops::Activation& activation, const at::Tensor& x);

}  // namespace telens
