#include "core/modules/attention/attention_rules.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include "core/modules/attention/score_block.h"
#include "core/modules/shared/activation_dtype.h"
#include "core/ops/optional_tensor.h"

namespace telens {
namespace {

ops::AttentionScores scores_with(const QueryKeyValueHeads& heads, const AttentionRules& rules) {
  return {.query = heads.query,
          .key = heads.key,
          .offset = rules.offset,
          .has_sink = rules.has_sink,
          .scale = rules.scale};
}

}  // namespace

AttentionRules without_learned(AttentionRules rules) {
  if (rules.bias) rules.bias.set_source(rules.bias.source().detach());
  rules.offset.reset();
  rules.choice.reset();
  return rules;
}

AttentionRules with_learned(AttentionRules rules, const at::Tensor& bias,
                            const at::Tensor& offset) {
  if (rules.bias) rules.bias.set_source(bias);
  rules.offset = ops::if_defined(offset);
  return rules;
}

AttentionRules make_rules(const QueryKeyValueHeads& heads, const ScoredAttention& how) {
  return {.mask = MaskRule(how.mask, {.batch = heads.query.size(0),
                                      .seq_q = heads.query.size(2),
                                      .seq_kv = heads.key.size(2),
                                      .heads = heads.query.size(1)}),
          .dropout = how.dropout,
          .scale = how.scale,
          .grouped = how.grouped};
}

ScoredAttention whole_attention(const AttentionRules& rules, const ScoreShape& shape) {
  return {.mask = rules.mask.whole(),
          .bias = rules.bias.whole(shape, rules.mask),
          .has_sink = rules.has_sink,
          .offset = rules.offset,
          .dropout = rules.dropout,
          .scale = rules.scale,
          .grouped = rules.grouped,
          .choice = rules.choice};
}

ops::AttentionScores scores_for_statistics(const QueryKeyValueHeads& heads,
                                           const AttentionRules& rules) {
  const ScoreShape shape = score_shape(heads.query, heads.key);
  ops::AttentionScores scores = scores_with(heads, rules);
  if (shape.scores() <= block_limits().most_whole) {
    const AttentionMask mask = rules.mask.whole();
    scores.allowed = mask.allowed;
    scores.blind = mask.blind;
    scores.is_causal = mask.is_causal;
    scores.bias = rules.bias.whole(shape, rules.mask);
    return scores;
  }
  scores.part = [heads, rules, shape](std::int64_t sample, std::int64_t samples, std::int64_t query,
                                      std::int64_t queries) {
    ScoreBlock block = whole_block(shape);
    block.sample = sample;
    block.samples = samples;
    block.query = query;
    block.queries = queries;
    ops::AttentionScores some = scores_with(heads, rules);
    some.query = block.of_queries(heads.query);
    some.key = block.of_keys(heads.key);
    const at::Tensor hidden = rules.mask.hidden(block);
    if (hidden.defined()) some.allowed = hidden.logical_not();
    const at::Tensor bias = rules.bias.part(block, rules.mask);
    if (bias.defined()) some.bias = bias;
    return some;
  };
  return scores;
}

const at::Tensor& RuledScores::hidden(const ScoreBlock& block) {
  ScoreBlock of_queries = block;
  // A mask of type arbitrary may differ between heads.
  if (!rules_.mask.differs_by_head()) of_queries.group = of_queries.groups = 0;
  if (!(of_queries == newest_)) {
    newest_ = of_queries;
    hidden_ = rules_.mask.hidden(block);
  }
  return hidden_;
}

at::Tensor RuledScores::operator()(at::Tensor scores, const ScoreBlock& block) {
  if (rules_.change) return rules_.change.function(scores, block);
  const at::Tensor bias = rules_.bias.part(block, rules_.mask);
  if (bias.defined()) scores.add_(bias);
  const at::Tensor& hidden = this->hidden(block);
  return hidden.defined() ? scores.masked_fill_(hidden, kUnseen) : scores;
}

BlockedScores make_blocked_scores(const at::Tensor& query, const at::Tensor& key,
                                  const AttentionRules& rules) {
  BlockedScores blocks{.shape = score_shape(query, key), .scores_of_block = scores_of_block(query)};
  // The function may change the score of a hidden key.
  if (!rules.change) {
    blocks.keys = [&rules](const ScoreBlock& block) { return rules.mask.keys(block); };
  }
  return blocks;
}

at::Tensor get_sink_score(const AttentionRules& rules, const at::TensorOptions& options) {
  if (!rules.has_sink) return {};
  return rules.offset ? rules.offset->to(c10::typeMetaToScalarType(options.dtype()))
                      : at::zeros({1, 1, 1, 1}, options);
}

at::Tensor largest_scores(const QueryKeyValueHeads& heads, const AttentionRules& rules) {
  const at::NoGradGuard no_grad;
  const at::Tensor query = to_accumulation_dtype(heads.query);
  const at::Tensor key = to_accumulation_dtype(heads.key);
  const at::Tensor largest = at::full({query.size(1)}, kUnseen, query.options().dtype(at::kFloat));
  RuledScores ruled(rules);
  for_score_blocks(make_blocked_scores(query, key, rules), [&](const ScoreBlock& block) {
    const at::Tensor scores = ruled(
        compute_products(block.of_queries(query), block.of_keys(key)).mul_(rules.scale), block);
    const at::Tensor own = largest.narrow(0, block.head(), block.heads());
    own.copy_(at::maximum(own, scores.amax({0, 2, 3}).to(at::kFloat)));
  });
  return largest;
}

}  // namespace telens
