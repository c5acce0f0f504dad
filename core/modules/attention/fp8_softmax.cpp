#include "core/modules/attention/fp8_softmax.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "core/modules/attention/unseen_keys.h"

namespace telens {

Fp8Softmax::Fp8Softmax(const CodedHeads& heads, const AttentionRules& rules)
    : heads_(heads),
      rules_(rules),
      ruled_(rules),
      factor_(heads.scale_inv * heads.scale_inv * rules.scale) {}

const SoftmaxBlock& Fp8Softmax::of(const ScoreBlock& block) {
  if (kept_ == block) return newest_;
  at::Tensor weights =
      ruled_(compute_products(block, block.of_queries(heads_.query), block.of_keys(heads_.key))
                 .mul_(factor_),
             block);
  at::Tensor largest = weights.amax(-1, /*keepdim=*/true);
  at::Tensor sink;
  if (rules_.has_sink) {
    sink = rules_.offset ? block.of_scores(*rules_.offset).to(at::kFloat)
                         : at::zeros({1, 1, 1, 1}, weights.options());
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
