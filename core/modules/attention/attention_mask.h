// The masks of attention, by Transformer Engine's names: types, windows, and the mask as a rule
// that is computed for one block of scores at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <vector>

#include "core/modules/attention/attention_arguments.h"
#include "core/modules/attention/score_block.h"

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

// ---- the mask as a rule

// Throws ShapeError unless `given` broadcasts to [batch, heads, seq_q, seq_kv]. `what`: its name in
// the message.
void check_broadcast(std::string_view what, at::IntArrayRef given, const AttentionSizes& sizes);

// An attention's mask as a rule. The mask is computed for one block of scores at a time, or for all
// of them if a kernel requires a single tensor.
class MaskRule {
 public:
  MaskRule() = default;  // no mask

  // masks: DotProductAttention's attention_mask; a mask of type arbitrary is stored, others are
  // read here. Throws UsageError if a required mask is missing, ShapeError if a mask has an
  // unsupported shape or dtype. has_distances: distances() will be called.
  MaskRule(const AttentionMaskType& type, const AttentionSpan& span,
           const std::vector<at::Tensor>& masks, const AttentionSizes& sizes,
           const at::Device& device, bool has_distances = false);

  // Uses an existing mask.
  MaskRule(const AttentionMask& whole, const AttentionSizes& sizes);

  bool hides() const {
    return has_limits() || hidden_.defined() || is_padded() || given_.allowed.has_value();
  }

  // True for pure top-left causality, which kernels support without a tensor.
  bool is_plain_causal() const { return is_causal_; }

  bool differs_by_head() const {
    return hidden_.defined() && hidden_.dim() > 2 && hidden_.size(-3) > 1;
  }

  // The size of the materialized mask.
  std::vector<std::int64_t> sizes() const;

  // The size of the distances to all keys.
  std::vector<std::int64_t> distance_sizes() const;

  AttentionMask whole() const;

  // Returns the visible keys of a block, boolean, broadcastable to [samples, heads, queries, keys];
  // undefined if all are visible.
  at::Tensor hidden(const ScoreBlock& block) const;

  // Returns the distances of keys before their query's diagonal: int64 [queries, keys], or
  // [samples, 1, queries, keys] with padding.
  at::Tensor distances(const ScoreBlock& block) const;

  // Returns a range that contains the keys visible to the block's queries; all keys if the host
  // would have to synchronize with a device.
  KeyRange keys(const ScoreBlock& block) const;

  // Throws UsageError if a mask of type arbitrary was modified since the forward.
  void check_unchanged() const;

 private:
  bool is_padded() const { return padded_query_.defined(); }
  bool has_limits() const { return left_ >= 0 || right_ >= 0; }
  // Positions of queries and keys on the diagonals: int64 [queries, 1] and [keys], or [samples, 1,
  // queries, 1] and [samples, 1, 1, keys] with padding.
  at::Tensor query_places(const ScoreBlock& block) const;
  at::Tensor key_places(const ScoreBlock& block) const;
  KeyRange padded_keys(std::int64_t sample, std::int64_t first, std::int64_t last) const;

  AttentionSizes sizes_{};
  at::Device device_ = at::kCPU;
  bool is_causal_ = false;   // top left, without other limits and padding
  std::int64_t left_ = -1;   // hides keys further back; -1: no limit
  std::int64_t right_ = -1;  // hides keys further ahead; -1: no limit
  std::int64_t shift_ = 0;   // shift of the diagonals without padding
  at::Tensor hidden_ = {};   // the given mask of type arbitrary
  std::uint32_t version_ = 0;
  AttentionMask given_ = {};
  at::Tensor padded_query_ = {};  // boolean [batch, 1, seq_q, 1]
  at::Tensor padded_key_ = {};    // [batch, 1, 1, seq_kv]
  at::Tensor query_place_ = {};   // int64, the same shapes
  at::Tensor key_place_ = {};
  // As int32 for limits. Padding is beyond every diagonal, so that one comparison also hides it.
  at::Tensor query_limit_ = {};
  at::Tensor key_limit_ = {};
};

}  // namespace telens
