// Inspection of an attention's tensors and checks that all layouts share.
#pragma once

#include <fmt/ranges.h>

#include "core/modules/attention/attention_layer.h"
#include "core/modules/attention/dot_product_attention.h"
#include "core/modules/shared/activation_dtype.h"

namespace telens {

inline const std::optional<at::Tensor>& first_given(const std::optional<at::Tensor>& first,
                                                    const std::optional<at::Tensor>& second) {
  return first ? first : second;
}

inline void check_key_and_value(const at::Tensor& key, const at::Tensor& value, std::int64_t dim) {
  if (key.size(dim) != value.size(dim)) {
    raise<ShapeError>(
        "DotProductAttention: key_layer is {} and value_layer {}; expected as many positions",
        key.sizes(), value.sizes());
  }
}

// Inspects queries, keys and values as given, in the attention's dtype, and their gradients.
// `query` and `key` convert gradients from [batch, heads, seq, size] to the given shape.
template <typename OfHeads, typename OfQuery, typename OfKey>
void show_inputs(const AttentionCall& call, const DotProductAttentionInputs& inputs,
                 const OfHeads& heads, const OfQuery& query, const OfKey& key) {
  const auto show = [&](TensorName name, const at::Tensor& tensor) {
    if (call.inspects(name)) call.show(name, to_activation_dtype(tensor.detach()));
  };
  show(TensorName::query, inputs.query_layer);
  show(TensorName::key, inputs.key_layer);
  show(TensorName::value, inputs.value_layer);
  call.show_gradient(TensorName::query_gradient, heads.query, query);
  call.show_gradient(TensorName::key_gradient, heads.key, key);
  call.show_gradient(TensorName::value_gradient, heads.value, key);
}

inline void show_output(const AttentionCall& call, const at::Tensor& output) {
  if (!call) return;
  call.show(TensorName::attention_output, output);
  call.show_gradient(TensorName::attention_output_gradient, output,
                     [](const at::Tensor& gradient) { return gradient; });
}

}  // namespace telens
