// The masks of attention, by Transformer Engine's names.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <vector>

#include "core/modules/attention/attention_arguments.h"

namespace telens {

// The alignment of causality if query and key differ in length. With padding, i and the lengths
// refer to a sample's own positions.
enum class Causality : std::uint8_t {
  none,
  top_left,      // query i attends to keys 0..i
  bottom_right,  // query i attends to keys 0..i + (seq_kv - seq_q)
};

struct AttentionMaskType {
  Causality causality = Causality::none;
  bool padding = false;
  bool arbitrary = false;
};

// Parses no_mask, padding, causal, padding_causal, causal_bottom_right, padding_causal_bottom_right
// or arbitrary; also "causal,padding" and "padding,causal". Throws UsageError that lists them.
AttentionMaskType mask_type_from_name(std::string_view name);

// The window around a query's diagonal; -1 means no limit. Causal types have separate diagonals;
// bottom_right applies to the other types.
struct AttentionSpan {
  std::int64_t left = -1;
  std::int64_t right = -1;
  bool bottom_right = true;

  bool has_window() const { return left >= 0 || right >= 0; }
};

// Returns the span of a window (left, right) for the type: causal types see nothing to the right,
// others have both limits or none. Applies Transformer Engine's corrections, with a warning; throws
// UsageError for anything else.
AttentionSpan attention_span(const AttentionMaskType& type, const std::optional<WindowSize>& window,
                             std::optional<bool> bottom_right);

struct AttentionSizes {
  std::int64_t batch;
  std::int64_t seq_q;
  std::int64_t seq_kv;
  std::int64_t heads = 1;
};

// Arguments of scaled_dot_product_attention.
struct AttentionMask {
  std::optional<at::Tensor> allowed{};  // boolean, broadcast to [batch, heads, seq_q, seq_kv]
  bool is_causal = false;               // top-left causality, without a tensor
  // Fully masked queries, as [..., seq_q, 1]; nullopt if there cannot be any. Kernels differ in
  // their result, so such queries are allowed all keys and the result is set to zero, for the
  // output and for gradients.
  std::optional<at::Tensor> blind{};
};

// allowed: boolean, broadcastable. Determines fully masked queries.
AttentionMask make_mask(const at::Tensor& allowed);

}  // namespace telens
