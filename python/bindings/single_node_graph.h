// The backward of an autograd graph of one node, without autograd's engine.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace telens::python {

// The gradients of `leaves` where one node lies between them and `root`, and `gradient` has root's
// shape and dtype; an undefined tensor for a leaf that got none. The node's saved tensors are let
// go. std::nullopt for any other graph, which is left as it is: ask torch::autograd::grad. The
// engine's bookkeeping costs more than the products of a small layer.
std::optional<std::vector<at::Tensor>> differentiate_single_node(
    const at::Tensor& root, const at::Tensor& gradient, const std::vector<at::Tensor>& leaves);

}  // namespace telens::python
