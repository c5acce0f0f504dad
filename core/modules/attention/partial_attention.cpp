#include "core/modules/attention/partial_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "core/modules/attention/score_block.h"

namespace telens {
namespace {

// A mask that is equal for all queries is unchanged.
at::Tensor get_rows(const at::Tensor& mask, const QueryRows& rows) {
  return mask.size(2) == 1 ? mask : rows.of(mask);
}

}  // namespace

at::Tensor partial_scores(const PartialHeads& heads, const PartialScores& how,
                          const QueryRows& rows) {
  at::Tensor scores = compute_products(rows.of(heads.query), heads.key);
  if (how.factor) {
    scores.mul_(*how.factor);
  } else {
    scores.mul_(how.scale);
  }
  if (how.bias) scores.add_(get_rows(*how.bias, rows));
  if (how.allowed) scores.masked_fill_(get_rows(*how.allowed, rows).logical_not(), kUnseen);
  return scores;
}

at::Tensor exponentiate(const at::Tensor& scores, const at::Tensor& lse) {
  const at::Tensor shift = seen_or(scores.amax(-1, /*keepdim=*/true), 0);
  scores.sub_(shift).exp_();
  at::Tensor sum = scores.sum(-1, /*keepdim=*/true);
  lse.copy_(sum.log().add_(shift));
  return sum.masked_fill_(sum == 0, 1);
}

void drop_partly(at::Tensor& weights, const PartialScores& how, const QueryRows& rows) {
  if (!how.kept) return;
  weights.mul_(get_rows(*how.kept, rows));
  if (how.keep > 0) weights.div_(how.keep);  // all dropped if 0
}

PartialAttention nothing_seen(const at::Tensor& query, const at::Tensor& value) {
  std::vector<std::int64_t> sizes = query.sizes().vec();
  sizes[3] = value.size(3);
  const at::Tensor output = at::zeros(sizes, query.options());
  sizes[3] = 1;
  return {output, at::full(sizes, kUnseen, query.options())};
}

PartialAttention attend_partly(const PartialHeads& heads, const PartialScores& how) {
  PartialAttention result = nothing_seen(heads.query, heads.value);
  if (heads.key.size(2) == 0) return result;
  for_query_rows(heads.query.size(2), [&](const QueryRows& rows) {
    at::Tensor weights = partial_scores(heads, how, rows);
    const at::Tensor sum = exponentiate(weights, rows.of(result.lse));
    drop_partly(weights, how, rows);
    rows.of(result.output).copy_(sum_over_keys(weights, heads.value).div_(sum));
  });
  return result;
}

void add_partial(const PartialAttention& sum, const PartialAttention& more) {
  const at::Tensor lse = at::logaddexp(sum.lse, more.lse);
  const at::Tensor shift = seen_or(lse, 0);  // exp(-Inf - 0) is 0
  sum.output.mul_((sum.lse - shift).exp_()).add_(more.output * (more.lse - shift).exp_());
  sum.lse.copy_(lse);
}

void add_partial_gradients(const PartialHeads& heads, const PartialScores& how,
                           const AttentionGradients& gradients, const PartialGradients& into) {
  if (heads.key.size(2) == 0) return;
  const std::int64_t groups = heads.key.size(1);
  const OverPositions over =
      gradients.over_positions.value_or(OverPositions{heads.query, heads.key, gradients.output});
  // Fully masked queries have weights 0.
  const at::Tensor lse = seen_or(gradients.lse, -kUnseen);
  for_query_rows(heads.query.size(2), [&](const QueryRows& rows) {
    const at::Tensor weights = partial_scores(heads, how, rows).sub_(rows.of(lse)).exp_();
    at::Tensor dropped = how.kept ? weights.clone() : weights;
    drop_partly(dropped, how, rows);
    into.heads.value.add_(sum_over_queries(dropped, rows.of(over.output), groups));
    at::Tensor of_weights = compute_products(rows.of(gradients.output), heads.value);
    drop_partly(of_weights, how, rows);
    const at::Tensor of_scores = of_weights.sub_(rows.of(gradients.delta)).mul_(weights);
    if (into.bias) {
      const at::Tensor own = get_rows(*into.bias, rows);
      own.add_(of_scores.sum_to_size(own.sizes()));
    }
    of_scores.mul_(how.scale);
    rows.of(into.heads.query).add_(sum_over_keys(of_scores, over.key));
    into.heads.key.add_(sum_over_queries(of_scores, rows.of(over.query), groups));
  });
}

}  // namespace telens
