// All modules, for whoever treats them alike (the Python package). A new module is one line.
#pragma once

#include "core/modules/dot_product_attention.h"
#include "core/modules/layer_norm.h"
#include "core/modules/layer_norm_linear.h"
#include "core/modules/layer_norm_mlp.h"
#include "core/modules/linear.h"
#include "core/modules/multihead_attention.h"
#include "core/modules/rms_norm.h"
#include "core/modules/transformer_layer.h"

namespace telens {

// Calls visit.operator()<M>(name) for each module M.
template <typename Visitor>
void for_each_module(Visitor&& visit) {
  visit.template operator()<Linear>("Linear");
  visit.template operator()<LayerNorm>("LayerNorm");
  visit.template operator()<RMSNorm>("RMSNorm");
  visit.template operator()<LayerNormLinear>("LayerNormLinear");
  visit.template operator()<LayerNormMLP>("LayerNormMLP");
  visit.template operator()<DotProductAttention>("DotProductAttention");
  visit.template operator()<MultiheadAttention>("MultiheadAttention");
  visit.template operator()<TransformerLayer>("TransformerLayer");
}

}  // namespace telens
