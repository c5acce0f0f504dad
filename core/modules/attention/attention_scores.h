// How one attention computes its weights: mask, bias, sink, dropout and scale, as whole tensors for
// LibTorch's scaled_dot_product_attention, and as rules for a few scores at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>

#include "core/modules/attention/attention_bias.h"
#include "core/modules/attention/attention_mask.h"
#include "core/modules/attention/score_block.h"
#include "core/ops/attention.h"

namespace telens {

// The weights of an attention, with whole masks and biases.
struct ScoredAttention {
  AttentionMask mask;
  std::optional<at::Tensor> bias = {};    // added to scaled scores, broadcastable
  bool has_sink = false;                  // exp(offset) is added to the softmax's sum
  std::optional<at::Tensor> offset = {};  // [1, heads, 1, 1]; nullopt counts as 0
  double dropout = 0;
  double scale = 1;
  bool grouped = false;  // key and value have fewer heads than the query
  // Receives the kernel. If null, LibTorch is not queried for it.
  std::shared_ptr<ops::AttentionChoice> choice = {};
};

struct QueryKeyValueHeads {
  at::Tensor query;  // [batch, heads, seq_q, size]
  at::Tensor key;    // [batch, groups, seq_kv, size]
  at::Tensor value;  // [batch, groups, seq_kv, value size]
};

// The dtype of terms of scores: FP64 for FP64, else FP32. BF16 has too few digits for a distance
// times a slope.
at::ScalarType mask_dtype(const at::Tensor& query);

// Returns [batch, heads, seq_q, value size]; 0 for fully masked queries. Calls LibTorch's
// scaled_dot_product_attention, which supports masks and additive biases. A sink is an additional
// key with a value of zeros.
at::Tensor attend_heads(const QueryKeyValueHeads& heads, const ScoredAttention& how);

// ---- attention rules

// A user function of scores, [samples, heads, queries, keys] in FP32 or FP64, for one block.
using ScoreFunction = std::function<at::Tensor(const at::Tensor& scores, const ScoreBlock& block)>;

// Transformer Engine's score_mod, which replaces mask and bias.
struct ScoreChange {
  ScoreFunction function = {};  // of scaled scores; empty if scores are unchanged
  // Computes the gradient of the scores from the gradient of the function's result; called after
  // `function` for the same block. If empty, autograd does.
  ScoreFunction gradient = {};

  explicit operator bool() const { return static_cast<bool>(function); }
};

// What determines an attention's weights, except queries, keys and values. Masks and biases are
// rules, so that they can be computed for a few scores at a time.
struct AttentionRules {
  MaskRule mask = {};
  BiasRule bias = {};  // added to scaled scores
  ScoreChange change = {};
  bool has_sink = false;                  // exp(offset) is added to the softmax's sum
  std::optional<at::Tensor> offset = {};  // [1, heads, 1, 1]; nullopt counts as 0
  double dropout = 0;
  double scale = 1;
  bool grouped = false;  // key and value have fewer heads than the query
  // Output: the kernel that ran. nullptr if it is not required: LibTorch is not queried then.
  std::shared_ptr<ops::AttentionChoice> choice = {};
};

// Removes learned tensors, which autograd keeps: a tensor of its graph that is stored here too
// would never be freed. Also removes `choice`.
AttentionRules without_learned(AttentionRules rules);
// Restores the learned tensors; they may be undefined.
AttentionRules with_learned(AttentionRules rules, const at::Tensor& bias, const at::Tensor& offset);

// Builds rules from a whole mask, without a bias.
AttentionRules make_rules(const QueryKeyValueHeads& heads, const ScoredAttention& how);

// Materializes masks and biases. Not for rules with a change.
ScoredAttention whole_attention(const AttentionRules& rules, const ScoreShape& shape);

// Returns the scores for the statistics operator, with masks and biases materialized if they are
// small.
ops::AttentionScores scores_for_statistics(const QueryKeyValueHeads& heads,
                                           const AttentionRules& rules);

// Applies bias, user function and mask (-Inf if hidden) to `scores`: [samples, heads, queries,
// keys], scaled, in FP32 or FP64. Modifies them in place unless rules.change returns new ones.
class RuledScores {
 public:
  explicit RuledScores(const AttentionRules& rules) : rules_(rules) {}

  at::Tensor operator()(at::Tensor scores, const ScoreBlock& block);

 private:
  // The mask of a block, shared by groups of the same queries.
  const at::Tensor& hidden(const ScoreBlock& block);

  const AttentionRules& rules_;
  ScoreBlock newest_{};
  at::Tensor hidden_;
};

// Returns the blocks of the scores of queries [batch, heads, seq_q, size] and keys [batch, groups,
// seq_kv, size]; excludes keys that the mask hides from all queries of a block. Refers to the
// rules.
BlockedScores make_blocked_scores(const at::Tensor& query, const at::Tensor& key,
                                  const AttentionRules& rules);

// Returns the score of the sink, [1, heads or 1, 1, 1] in `dtype`; undefined if there is none.
at::Tensor get_sink_score(const AttentionRules& rules, const at::TensorOptions& options);

// Returns the largest visible score per head without the sink, FP32 [heads]; -Inf if all are
// masked.
at::Tensor largest_scores(const QueryKeyValueHeads& heads, const AttentionRules& rules);

}  // namespace telens
