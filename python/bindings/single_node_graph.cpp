#include "python/bindings/single_node_graph.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstddef>
#include <string>

namespace telens::python {

namespace {

using torch::autograd::Edge;
using torch::autograd::Node;

bool has_hooks(Node& node) {
  return !node.pre_hooks().empty() || !node.post_hooks().empty() ||
         !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty();
}

// For each leaf the place of its gradient among the node's; std::nullopt if the node's edges lead
// to anything else, or to one leaf twice.
std::optional<std::vector<std::size_t>> find_places(const Node& node,
                                                    const std::vector<at::Tensor>& leaves) {
  std::vector<std::size_t> places;
  for (const at::Tensor& leaf : leaves) {
    const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(leaf);
    const auto is_leafs = [&](const Edge& edge) { return edge.function == accumulator; };
    const auto& edges = node.next_edges();
    const auto found = std::ranges::find_if(edges, is_leafs);
    if (!accumulator || found == edges.end()) return std::nullopt;
    places.push_back(static_cast<std::size_t>(found - edges.begin()));
  }
  const auto edges = std::ranges::count_if(node.next_edges(), &Edge::is_valid);
  if (edges != static_cast<std::ptrdiff_t>(leaves.size())) return std::nullopt;
  return places;
}

}  // namespace

std::optional<std::vector<at::Tensor>> differentiate_single_node(
    const at::Tensor& root, const at::Tensor& gradient, const std::vector<at::Tensor>& leaves) {
  const auto node = root.grad_fn();  // torch 2.15 replaces shared_ptr by its own pointer type
  if (!node || node->num_inputs() != 1 || has_hooks(*node)) return std::nullopt;
  if (gradient.sizes() != root.sizes() || gradient.scalar_type() != root.scalar_type()) {
    return std::nullopt;
  }
  const auto places = find_places(*node, leaves);
  if (!places) return std::nullopt;
  const at::AutoGradMode no_graph(false);
  torch::autograd::variable_list found = (*node)({gradient});
  node->release_variables();
  torch::autograd::validate_outputs(node->next_edges(), found, [&](const std::string& text) {
    return node->name() + " returned " + text;
  });
  std::vector<at::Tensor> results;
  for (const std::size_t place : *places) results.push_back(found[place]);
  return results;
}

}  // namespace telens::python
