// An all-to-all that autograd follows.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/distributed/process_group.h"

namespace telens {

// [ranks, ...]: part i goes to rank i; the result has what each rank had for this one. Gradients go
// back the same way.
at::Tensor exchange_parts(const at::Tensor& x, const ProcessGroupPtr& group);

}  // namespace telens
