// An attention's mask as its rule: what is hidden is made for one block of scores at a time, or
// for all of them where a kernel wants one tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "core/modules/attention/attention_mask.h"
#include "core/modules/attention/score_block.h"

namespace telens {

// Throws ShapeError unless `given` broadcasts to [batch, heads, seq_q, seq_kv]; `what`: of whom.
void check_broadcast(std::string_view what, at::IntArrayRef given, const AttentionSizes& sizes);

class MaskRule {
 public:
  MaskRule() = default;  // hides nothing

  // masks: as DotProductAttention's attention_mask; a mask of type arbitrary is kept as it is,
  // others are read here. Throws UsageError if the type needs a mask that is not there, ShapeError
  // if one has a shape or dtype that the type does not take. has_distances: they will be asked for.
  MaskRule(const AttentionMaskType& type, const AttentionSpan& span,
           const std::vector<at::Tensor>& masks, const AttentionSizes& sizes,
           const at::Device& device, bool has_distances = false);

  // A mask that is there already.
  MaskRule(const AttentionMask& whole, const AttentionSizes& sizes);

  bool hides() const {
    return has_limits() || hidden_.defined() || is_padded() || given_.allowed.has_value();
  }

  // Top-left causality, which kernels have without a tensor.
  bool is_plain_causal() const { return is_causal_; }

  bool differs_by_head() const {
    return hidden_.defined() && hidden_.dim() > 2 && hidden_.size(-3) > 1;
  }

  // Those of the whole mask, had it one.
  std::vector<std::int64_t> sizes() const;

  // Those of distances to all keys.
  std::vector<std::int64_t> distance_sizes() const;

  AttentionMask whole() const;

  // Boolean, broadcast to [samples, heads, queries, keys]; undefined: every key is seen.
  at::Tensor hidden(const ScoreBlock& block) const;

  // How far each key lies behind its query's diagonal: int64 [queries, keys], or
  // [samples, 1, queries, keys] with padding.
  at::Tensor distances(const ScoreBlock& block) const;

  // The keys that the block's queries may see, a few more at times; all where the host would have
  // to ask a device.
  KeyRange keys(const ScoreBlock& block) const;

  // Throws UsageError where a mask of type arbitrary was changed since the forward.
  void check_unchanged() const;

 private:
  bool is_padded() const { return padded_query_.defined(); }
  bool has_limits() const { return left_ >= 0 || right_ >= 0; }
  // Places of queries and keys in the counting of the diagonals: int64 [queries, 1] and [keys], or
  // [samples, 1, queries, 1] and [samples, 1, 1, keys] with padding.
  at::Tensor query_places(const ScoreBlock& block) const;
  at::Tensor key_places(const ScoreBlock& block) const;
  KeyRange padded_keys(std::int64_t sample, std::int64_t first, std::int64_t last) const;

  AttentionSizes sizes_{};
  at::Device device_ = at::kCPU;
  bool is_causal_ = false;   // top left, with no other limit and no padding
  std::int64_t left_ = -1;   // keys further back than this are hidden; -1: none
  std::int64_t right_ = -1;  // keys further on
  std::int64_t shift_ = 0;   // moves the diagonals, without padding
  at::Tensor hidden_ = {};   // the mask of type arbitrary, as it was given
  std::uint32_t version_ = 0;
  AttentionMask given_ = {};
  at::Tensor padded_query_ = {};  // boolean [batch, 1, seq_q, 1]
  at::Tensor padded_key_ = {};    // [batch, 1, 1, seq_kv]
  at::Tensor query_place_ = {};   // int64, the same shapes
  at::Tensor key_place_ = {};
  // The same as int32 for limits: padding lies beyond every diagonal, so that one comparison hides
  // it too.
  at::Tensor query_limit_ = {};
  at::Tensor key_limit_ = {};
};

}  // namespace telens
