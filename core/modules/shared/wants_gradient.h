// Asks autograd for a tensor's part in the graph.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

namespace telens {

// True if a call with this tensor, which may be undefined, makes a graph for its gradient.
inline bool wants_gradient(const at::Tensor& tensor) {
  return at::GradMode::is_enabled() && tensor.defined() && tensor.requires_grad();
}

}  // namespace telens
