// All modules, for code that handles them uniformly (the Python package). A new module adds one
// line.
#pragma once

#include "core/modules/attention/dot_product_attention.h"
#include "core/modules/fused/layer_norm_linear.h"
#include "core/modules/fused/layer_norm_mlp.h"
#include "core/modules/linear/grouped_linear.h"
#include "core/modules/linear/linear.h"
#include "core/modules/norm/norm.h"
#include "core/modules/transformer/multihead_attention.h"
#include "core/modules/transformer/transformer_layer.h"

namespace telens {

// Calls visit.operator()<M>(name, doc) for each module M; doc is the first line of its Python
// docstring.
template <typename Visitor>
void for_each_module(Visitor&& visit) {
  visit.template operator()<Linear>("Linear", "Applies y = x A^T + b.");
  visit.template operator()<GroupedLinear>(
      "GroupedLinear", "Applies y_i = x_i A_i^T + b_i to consecutive rows of an input.");
  visit.template operator()<LayerNorm>("LayerNorm",
                                       "Layer normalization (https://arxiv.org/abs/1607.06450).");
  visit.template operator()<RMSNorm>(
      "RMSNorm", "Root mean square layer normalization (https://arxiv.org/abs/1910.07467).");
  visit.template operator()<LayerNormLinear>("LayerNormLinear",
                                             "Normalization, then a linear layer.");
  visit.template operator()<LayerNormMLP>(
      "LayerNormMLP", "Normalization, then two linear layers with an activation between them.");
  visit.template operator()<DotProductAttention>(
      "DotProductAttention",
      "Scaled dot-product attention (https://arxiv.org/abs/1706.03762), without projections.");
  visit.template operator()<MultiheadAttention>(
      "MultiheadAttention", "Attention with its projections for query, key, value and output.");
  visit.template operator()<TransformerLayer>(
      "TransformerLayer",
      "A Transformer layer: attention block and feed-forward block with residuals.");
}

}  // namespace telens
