#include "core/modules/dot_product_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <fmt/ranges.h>

#include "core/modules/qkv_format.h"

namespace telens {

DotProductAttention::DotProductAttention(DotProductAttentionOptions options)
    : options_(std::move(options)) {
  batch_dim_of(options_.qkv_format);
  mask_type_from_name(options_.attn_mask_type);
  const std::int64_t heads = options_.num_attention_heads;
  const std::int64_t groups = options_.num_gqa_groups.value_or(heads);
  if (heads < 1 || groups < 1 || heads % groups != 0) {
    raise<UsageError>(
        "DotProductAttention: {} heads in {} groups; the groups must divide the heads", heads,
        groups);
  }
}

void DotProductAttention::check(const DotProductAttentionInputs& inputs,
                                std::int64_t batch_dim) const {
  const std::int64_t groups = options_.num_gqa_groups.value_or(options_.num_attention_heads);
  const auto check_one = [&](const char* name, const at::Tensor& tensor, std::int64_t heads) {
    if (tensor.dim() != 4 || tensor.size(2) != heads ||
        tensor.size(batch_dim) != inputs.query_layer.size(batch_dim)) {
      raise<ShapeError>(
          "DotProductAttention: {} is {}; expected 4 dimensions, {} heads, and one batch "
          "size with the query's {}",
          name, tensor.sizes(), heads, inputs.query_layer.sizes());
    }
  };
  check_one("query_layer", inputs.query_layer, options_.num_attention_heads);
  check_one("key_layer", inputs.key_layer, groups);
  check_one("value_layer", inputs.value_layer, groups);
}

Outputs DotProductAttention::forward(const DotProductAttentionInputs& inputs) {
  const std::int64_t batch_dim = batch_dim_of(inputs.qkv_format.value_or(options_.qkv_format));
  const std::int64_t seq_dim = 1 - batch_dim;
  check(inputs, batch_dim);
  const AttentionMaskType type =
      mask_type_from_name(inputs.attn_mask_type.value_or(options_.attn_mask_type));
  const AttentionSizes sizes{.batch = inputs.query_layer.size(batch_dim),
                             .seq_q = inputs.query_layer.size(seq_dim),
                             .seq_kv = inputs.key_layer.size(seq_dim)};
  const AttentionMask mask =
      make_attention_mask(type, inputs.attention_mask, sizes, inputs.query_layer.device());

  // LibTorch has [batch, head, seq, dim].
  const auto arranged = [&](const at::Tensor& tensor) {
    return tensor.permute({batch_dim, 2, seq_dim, 3});
  };
  const bool grouped = options_.num_gqa_groups.value_or(options_.num_attention_heads) !=
                       options_.num_attention_heads;
  at::Tensor attended = at::scaled_dot_product_attention(
      arranged(inputs.query_layer), arranged(inputs.key_layer), arranged(inputs.value_layer),
      mask.allowed, is_training() ? options_.attention_dropout : 0.0, mask.is_causal,
      options_.softmax_scale, grouped);
  if (mask.blind) attended = attended.masked_fill(*mask.blind, 0.0);
  // [batch, head, seq, dim] -> [seq, batch, head * dim] or [batch, seq, head * dim]
  const at::Tensor by_position =
      batch_dim == 0 ? attended.permute({0, 2, 1, 3}) : attended.permute({2, 0, 1, 3});
  return {by_position.flatten(2)};
}

at::Tensor DotProductAttention::extra_state() const {
  return at::empty({0}, at::TensorOptions().dtype(at::kByte));
}

}  // namespace telens
