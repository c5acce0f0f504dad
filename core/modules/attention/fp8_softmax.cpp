#include "core/modules/attention/fp8_softmax.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/maximum.h>

#include <utility>

#include "core/modules/attention/unseen_keys.h"

namespace telens {

Fp8Softmax::Fp8Softmax(const CodedHeads& heads, const AttentionRules& rules)
    : heads_(heads),
      rules_(rules),
      ruled_(rules),
      factor_(heads.scale_inv * heads.scale_inv * rules.scale),
      sink_(get_sink_score(rules, factor_.options())) {}

const SoftmaxBlock& Fp8Softmax::of(const ScoreBlock& block) {
  if (kept_ == block) return newest_;
  at::Tensor weights = ruled_(compute_products(block.of_queries(heads_.query.over_size),
                                               block.of_keys(heads_.key.over_size))
                                  .mul_(factor_),
                              block);
  at::Tensor largest = weights.amax(-1, /*keepdim=*/true);
  at::Tensor sink;
  if (sink_.defined()) {
    sink = block.of_scores(sink_);
    largest = at::maximum(largest, sink);
  }
  const at::Tensor shift = seen_or(largest, 0);
  weights.sub_(shift).exp_();
  at::Tensor sum = weights.sum(-1, /*keepdim=*/true);
  if (sink.defined()) {
    sink = (sink - shift).exp_();
    sum = sum + sink;
    sink.div_(sum);
  }
  weights.div_(sum.masked_fill(sum == 0, 1));
  kept_ = block;
  newest_ = {std::move(weights), std::move(sink)};
  return newest_;
}

}  // namespace telens
