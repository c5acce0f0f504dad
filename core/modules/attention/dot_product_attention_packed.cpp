// DotProductAttention of packed sequences (thd).
#include <ATen/ops/equal.h>
#include <fmt/ranges.h>

#include <utility>

#include "core/modules/attention/attention_shown.h"
#include "core/modules/attention/dot_product_attention.h"
#include "core/modules/attention/fp8_attention.h"
#include "core/modules/attention/packed_sequences.h"

namespace telens {
namespace {

// [batch, heads, seq, size] -> [tokens, heads, size]
class TokensOf {
 public:
  TokensOf(PackedSequences sequences, std::int64_t tokens)
      : sequences_(std::move(sequences)), tokens_(tokens) {}

  at::Tensor operator()(const at::Tensor& heads) const {
    return pack_sequences(heads.transpose(1, 2).flatten(2), sequences_, tokens_)
        .unflatten(-1, {heads.size(1), heads.size(3)});
  }

 private:
  PackedSequences sequences_;
  std::int64_t tokens_;
};

void check_packed_heads(const char* name, const at::Tensor& tensor, std::int64_t heads) {
  if (tensor.size(1) != heads) {
    raise<ShapeError>("DotProductAttention: {} is {}; expected [tokens, {} heads, size]", name,
                      tensor.sizes(), heads);
  }
}

}  // namespace

DotProductAttention::Packed DotProductAttention::packed(
    const DotProductAttentionInputs& inputs) const {
  const ScoreArguments& scores = inputs.scores;
  const std::int64_t tokens = inputs.query_layer.size(0);
  const std::int64_t key_tokens = inputs.key_layer.size(0);
  const std::optional<at::Tensor>& sums_kv = first_given(scores.cu_seqlens_kv, scores.cu_seqlens_q);
  const std::optional<at::Tensor>& padded_kv =
      scores.cu_seqlens_kv ? scores.cu_seqlens_kv_padded
                           : first_given(scores.cu_seqlens_kv_padded, scores.cu_seqlens_q_padded);
  if (!context_.is_divided()) {
    return {.queries = packed_sequences("cu_seqlens_q", *scores.cu_seqlens_q,
                                        scores.cu_seqlens_q_padded, scores.max_seqlen_q, tokens),
            .keys = packed_sequences("cu_seqlens_kv", *sums_kv, padded_kv, scores.max_seqlen_kv,
                                     key_tokens),
            .places = {}};
  }
  check_context(inputs);
  const ContextRank at = context_.place();
  const PackedContext queries =
      packed_context("cu_seqlens_q", *scores.cu_seqlens_q, scores.cu_seqlens_q_padded, tokens, at);
  // Reads both on the host, once if keys and queries share them.
  const bool own = !scores.cu_seqlens_kv && !scores.cu_seqlens_kv_padded && key_tokens == tokens;
  const PackedContext keys =
      own ? queries : packed_context("cu_seqlens_kv", *sums_kv, padded_kv, key_tokens, at);
  return {.queries = queries.own,
          .keys = keys.own,
          .places = {.query = queries.positions,
                     .key = keys.positions,
                     .alike = own || at::equal(queries.positions.whole, keys.positions.whole)}};
}

Outputs DotProductAttention::attend_packed(const DotProductAttentionInputs& inputs) {
  const ScoreArguments& scores = inputs.scores;
  if (!mask_type(inputs).padding || !scores.cu_seqlens_q) {
    raise<UsageError>(
        "DotProductAttention: qkv_format thd needs cu_seqlens_q and a padding mask (padding, "
        "padding_causal or padding_causal_bottom_right)");
  }
  if (inputs.query_layer.dim() != 3 || inputs.key_layer.dim() != 3 ||
      inputs.value_layer.dim() != 3) {
    raise<ShapeError>(
        "DotProductAttention: query_layer is {}, key_layer {}, value_layer {}; qkv_format thd "
        "takes [tokens, heads, size]",
        inputs.query_layer.sizes(), inputs.key_layer.sizes(), inputs.value_layer.sizes());
  }
  check_packed_heads("query_layer", inputs.query_layer, options_.num_attention_heads);
  check_packed_heads("key_layer", inputs.key_layer, groups());
  check_packed_heads("value_layer", inputs.value_layer, groups());
  check_key_and_value(inputs.key_layer, inputs.value_layer, 0);
  check_channels(inputs);
  const std::int64_t tokens = inputs.query_layer.size(0);
  const auto [queries, keys, places] = packed(inputs);
  if (keys.batch != queries.batch) {
    raise<ShapeError>("DotProductAttention: cu_seqlens_q has {} sequences and cu_seqlens_kv {}",
                      queries.batch, keys.batch);
  }
  const auto by_head = [](const at::Tensor& tensor, const PackedSequences& sequences) {
    return unpack_sequences(tensor, sequences).transpose(1, 2);
  };
  const Heads heads{.query = by_head(inputs.query_layer, queries),
                    .key = by_head(inputs.key_layer, keys),
                    .value = by_head(inputs.value_layer, keys),
                    .masks = {queries.padding, keys.padding}};
  const AttentionCall call = begin_forward(inputs);
  if (call) {
    show_inputs(call, inputs, heads, TokensOf(queries, tokens),
                TokensOf(keys, inputs.key_layer.size(0)));
  }
  const auto [attended, largest] =
      context_.is_divided() ? std::pair(attend_divided(heads, places, inputs, call), at::Tensor())
                            : attend(heads, inputs, call);
  Outputs outputs{
      with_codes(pack_sequences(attended.transpose(1, 2).flatten(2), queries, tokens), call.fp8())};
  show_output(call, outputs[0]);
  if (largest.defined()) outputs.push_back(largest);
  return outputs;
}

}  // namespace telens
