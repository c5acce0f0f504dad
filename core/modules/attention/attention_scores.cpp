#include "core/modules/attention/attention_scores.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/modules/attention/attention_kernels.h"
#include "core/modules/attention/score_block.h"
#include "core/modules/shared/activation_dtype.h"
#include "core/ops/device.h"
#include "core/ops/tensor_utils.h"

namespace telens {
namespace {

// Returns is_causal (top left) as a boolean mask.
at::Tensor causal_mask(const QueryKeyValueHeads& heads) {
  return at::ones({heads.query.size(2), heads.key.size(2)}, heads.query.options().dtype(at::kBool))
      .tril();
}

// Returns the boolean mask, or nullopt if every key is visible.
std::optional<at::Tensor> boolean_mask(const QueryKeyValueHeads& heads,
                                       const ScoredAttention& how) {
  return how.mask.is_causal ? std::optional(causal_mask(heads)) : how.mask.allowed;
}

// Returns the additive mask [..., heads or 1, seq_q, seq_kv], -Inf for hidden keys.
at::Tensor additive_mask(const QueryKeyValueHeads& heads, const ScoredAttention& how) {
  const at::ScalarType dtype = mask_dtype(heads.query);
  const std::optional<at::Tensor> seen = boolean_mask(heads, how);
  at::Tensor bias = how.bias ? how.bias->to(dtype)
                             : at::zeros({heads.query.size(2), heads.key.size(2)},
                                         heads.query.options().dtype(dtype));
  return seen ? at::where(*seen, bias, at::full({}, kUnseen, bias.options())) : bias;
}

// Appends a column of the sink's scores. Expands heads only if they differ.
at::Tensor with_sink_column(const at::Tensor& mask, const QueryKeyValueHeads& heads,
                            const ScoredAttention& how) {
  const std::int64_t batch = mask.dim() == 4 ? mask.size(0) : 1;
  const std::int64_t own_heads = mask.dim() < 3 ? 1 : mask.size(-3);
  const at::Tensor whole = mask.expand({batch, how.offset ? heads.query.size(1) : own_heads,
                                        heads.query.size(2), heads.key.size(2)});
  const at::Tensor column =
      how.offset ? how.offset->to(mask.scalar_type()) : at::zeros({1, 1, 1, 1}, mask.options());
  return at::cat({whole, column.expand({batch, whole.size(1), whole.size(2), 1})}, -1);
}

at::Tensor with_zeros(const at::Tensor& tensor) {
  return at::cat({tensor, at::zeros_like(tensor.narrow(2, 0, 1))}, 2);
}

// Fully masked queries were allowed everything (AttentionMask::blind).
at::Tensor without_blind(const at::Tensor& attended, const AttentionMask& mask) {
  return mask.blind ? attended.masked_fill(*mask.blind, 0.0) : attended;
}

// The dtype in which the attention is computed. FP32 if the CPU has no BF16 instructions. The dtype
// of a wider additive mask if the device's kernels reject one or read its bits as the narrower
// dtype: a rounded mask would lose digits of distances.
at::ScalarType compute_dtype(const at::Tensor& query, const std::optional<at::Tensor>& mask) {
  const at::ScalarType dtype = query.scalar_type();
  if (ops::multiplies_in_fp32(query)) return at::kFloat;
  const bool widens = !ops::takes_wider_mask(query) && mask && mask->scalar_type() != at::kBool;
  return widens ? mask->scalar_type() : dtype;
}

at::Tensor scaled_attention(const QueryKeyValueHeads& heads, const std::optional<at::Tensor>& mask,
                            bool is_causal, const ScoredAttention& how) {
  const at::ScalarType dtype = compute_dtype(heads.query, mask);
  const auto in_dtype = [&](const at::Tensor& tensor) {
    return tensor.scalar_type() == dtype ? tensor : tensor.to(dtype);
  };
  const ScaledAttention taken{.query = in_dtype(heads.query),
                              .key = in_dtype(heads.key),
                              .value = in_dtype(heads.value),
                              .mask = mask,
                              .dropout = how.dropout,
                              .is_causal = is_causal,
                              .scale = how.scale,
                              .grouped = how.grouped};
  const AllowedAttentionKernels kernels(taken.query);
  check_kernel_is_left(taken, kernels);
  if (how.choice) {
    *how.choice =
        choose_kernel(taken, mask_parts({.has_mask = how.mask.allowed || how.mask.is_causal,
                                         .bias = how.bias,
                                         .has_sink = how.has_sink,
                                         .offset = how.offset}));
  }
  return at::scaled_dot_product_attention(taken.query, taken.key, taken.value, mask, how.dropout,
                                          is_causal, how.scale, how.grouped)
      .to(heads.query.scalar_type());
}

}  // namespace

at::ScalarType mask_dtype(const at::Tensor& query) {
  return query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor attend_heads(const QueryKeyValueHeads& heads, const ScoredAttention& how) {
  std::optional<at::Tensor> mask = how.mask.allowed;
  bool causal = how.mask.is_causal;
  if (how.bias || how.has_sink) {
    mask = additive_mask(heads, how);
    causal = false;
  }
  if (how.has_sink && heads.key.size(2) > 0) {
    mask = with_sink_column(*mask, heads, how);
    return without_blind(
        scaled_attention({heads.query, with_zeros(heads.key), with_zeros(heads.value)}, mask, false,
                         how),
        how.mask);
  }
  return without_blind(scaled_attention(heads, mask, causal, how), how.mask);
}

// ---- attention rules

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
