// How one attention makes its weights: everything but queries, keys and values. Masks and biases
// are rules, so that they can be made for a few scores at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>

#include "core/modules/attention/attention_bias.h"
#include "core/modules/attention/attention_scores.h"
#include "core/modules/attention/mask_rule.h"
#include "core/modules/attention/score_block.h"
#include "core/ops/attention_choice.h"
#include "core/ops/attention_statistics.h"

namespace telens {

// A user's function of scores, [samples, heads, queries, keys] in FP32 or FP64, of one block.
using ScoreFunction = std::function<at::Tensor(const at::Tensor& scores, const ScoreBlock& block)>;

// Transformer Engine's score_mod: takes the place of mask and bias.
struct ScoreChange {
  ScoreFunction function = {};  // takes scaled scores; not set: they stay as they are
  // Makes the gradient of the scores of that of the function's result; called after `function` for
  // the same block. Not set: autograd does.
  ScoreFunction gradient = {};

  explicit operator bool() const { return static_cast<bool>(function); }
};

struct AttentionRules {
  MaskRule mask = {};
  BiasRule bias = {};  // is added to scaled scores
  ScoreChange change = {};
  bool has_sink = false;                  // exp(offset) is added to the softmax's sum
  std::optional<at::Tensor> offset = {};  // [1, heads, 1, 1]; nothing: 0
  double dropout = 0;
  double scale = 1;
  bool grouped = false;  // fewer heads of key and value than of the query
  // Takes the kernel where it is given; LibTorch is not asked elsewhere.
  std::shared_ptr<ops::AttentionChoice> choice = {};
};

// For a backward that keeps the rules: autograd keeps what is learned, and a tensor of its graph
// that is held here as well would never be freed. `choice` is left out too.
AttentionRules without_learned(AttentionRules rules);
// And back; undefined: there is none.
AttentionRules with_learned(AttentionRules rules, const at::Tensor& bias, const at::Tensor& offset);

// The same of a whole mask, without a bias.
AttentionRules make_rules(const QueryKeyValueHeads& heads, const ScoredAttention& how);

// The same with whole masks and biases. Not for rules with a change.
ScoredAttention whole_attention(const AttentionRules& rules, const ScoreShape& shape);

// The scores as the operator of their statistics takes them, masks and biases whole where they are
// small.
ops::AttentionScores scores_for_statistics(const QueryKeyValueHeads& heads,
                                           const AttentionRules& rules);

// Adds the bias, changes, and puts -Inf where nothing is seen. scores: [samples, heads, queries,
// keys], scaled, in FP32 or FP64; changed in place unless rules.change makes others.
class RuledScores {
 public:
  explicit RuledScores(const AttentionRules& rules) : rules_(rules) {}

  at::Tensor operator()(at::Tensor scores, const ScoreBlock& block);

 private:
  // The mask's part, which groups of the same queries share.
  const at::Tensor& hidden(const ScoreBlock& block);

  const AttentionRules& rules_;
  ScoreBlock newest_{};
  at::Tensor hidden_;
};

// The blocks of the scores of queries [batch, heads, seq_q, size] and keys [batch, groups, seq_kv,
// size], without keys that the mask hides from all queries of one. Refers to the rules.
BlockedScores make_blocked_scores(const at::Tensor& query, const at::Tensor& key,
                                  const AttentionRules& rules);

// [1, heads or 1, 1, 1] of that dtype: the score of the sink; undefined: there is none.
at::Tensor get_sink_score(const AttentionRules& rules, const at::TensorOptions& options);

// [heads], FP32: the largest score that a query sees, without the sink's; -Inf where none is seen.
at::Tensor largest_scores(const QueryKeyValueHeads& heads, const AttentionRules& rules);

}  // namespace telens
