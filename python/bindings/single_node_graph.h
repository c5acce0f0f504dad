// Runs the backward of an autograd graph with a single node without autograd's engine.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace telens::python {

// Returns the gradients of `leaves` if exactly one node is between them and `root`, and `gradient`
// has root's shape and dtype. A leaf without a gradient gets an undefined tensor. The node's saved
// tensors are released. Returns std::nullopt for any other graph and does not change it: use
// torch::autograd::grad. The engine's bookkeeping costs more than the products of a small layer.
std::optional<std::vector<at::Tensor>> differentiate_single_node(
    const at::Tensor& root, const at::Tensor& gradient, const std::vector<at::Tensor>& leaves);

}  // namespace telens::python
