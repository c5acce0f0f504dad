// The masks of attention, by Transformer Engine's names.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <vector>

#include "core/modules/attention/attention_arguments.h"

namespace telens {

// How causality is aligned where query and key differ in length. With padding, i and the lengths
// count a sample's own positions.
enum class Causality : std::uint8_t {
  none,
  top_left,      // query i sees keys 0..i
  bottom_right,  // query i sees keys 0..i + (seq_kv - seq_q)
};

struct AttentionMaskType {
  Causality causality = Causality::none;
  bool padding = false;
  bool arbitrary = false;
};

// no_mask, padding, causal, padding_causal, causal_bottom_right, padding_causal_bottom_right,
// arbitrary; also "causal,padding" and "padding,causal". Throws UsageError naming them.
AttentionMaskType mask_type_from_name(std::string_view name);

// The diagonals that a query sees around its own, whatever the type says: -1 for no limit. The
// diagonals of causal types are their own; bottom_right is for the others.
struct AttentionSpan {
  std::int64_t left = -1;
  std::int64_t right = -1;
  bool bottom_right = true;

  bool has_window() const { return left >= 0 || right >= 0; }
};

// The span of a window (left, right) as the type takes it: causal ones see nothing to the right,
// others have both limits or none. Corrects what Transformer Engine corrects, with a warning;
// throws UsageError for anything else.
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
  bool is_causal = false;               // top-left causality, which needs no tensor
  // Queries that may look at no key, as [..., seq_q, 1]; where there can be such. Kernels differ in
  // what they make of them. Here they are allowed everything, and what comes of it is to be set to
  // zero, so that neither they nor their gradients say anything.
  std::optional<at::Tensor> blind{};
};

// allowed: boolean, of any shape that broadcasts. Queries without a key are told apart.
AttentionMask make_mask(const at::Tensor& allowed);

}  // namespace telens
