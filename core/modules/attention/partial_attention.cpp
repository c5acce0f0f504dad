#include "core/modules/attention/partial_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

namespace telens {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kQueries = 256;  // whose scores are there at one time

// [batch, heads, n, size] -> [batch, groups, heads of a group * n, size]: one product for all heads
// that share a key.
at::Tensor by_group(const at::Tensor& x, std::int64_t groups) {
  return x.reshape({x.size(0), groups, x.size(1) / groups * x.size(2), x.size(3)});
}

at::Tensor of_heads(const at::Tensor& x, std::int64_t heads) {
  return x.reshape({x.size(0), heads, x.size(1) * x.size(2) / heads, x.size(3)});
}

// Rows of a few queries; what is the same for all of them stays as it is.
std::optional<at::Tensor> rows(const std::optional<at::Tensor>& mask, std::int64_t first,
                               std::int64_t count) {
  if (!mask || mask->size(2) == 1) return mask;
  return mask->narrow(2, first, count);
}

}  // namespace

at::Tensor partial_scores(const at::Tensor& query, const at::Tensor& key, const PartialScores& how,
                          std::int64_t first) {
  const std::int64_t count = query.size(2);
  const at::Tensor products = at::matmul(by_group(query, key.size(1)), key.transpose(-1, -2));
  if (how.factor) {
    products.mul_(*how.factor);
  } else {
    products.mul_(how.scale);
  }
  at::Tensor scores = of_heads(products, query.size(1));
  if (how.bias) scores.add_(*rows(how.bias, first, count));
  if (how.allowed) {
    scores.masked_fill_(rows(how.allowed, first, count)->logical_not(), -kInfinity);
  }
  return scores;
}

void drop_partly(at::Tensor& weights, const PartialScores& how, std::int64_t first) {
  if (!how.kept) return;
  weights.mul_(*rows(how.kept, first, weights.size(2)));
  if (how.keep > 0) weights.div_(how.keep);  // dropout 1 leaves nothing
}

at::Tensor lse_or(const at::Tensor& lse, double instead) {
  return lse.masked_fill(lse == -kInfinity, instead);
}

PartialAttention attend_partly(const PartialHeads& heads, const PartialScores& how) {
  const std::int64_t batch = heads.query.size(0);
  const std::int64_t count = heads.query.size(1);
  const std::int64_t queries = heads.query.size(2);
  const std::int64_t groups = heads.key.size(1);
  if (heads.key.size(2) == 0) {
    return {at::zeros({batch, count, queries, heads.value.size(3)}, heads.query.options()),
            at::full({batch, count, queries, 1}, -kInfinity, heads.query.options())};
  }
  const PartialAttention result{
      at::empty({batch, count, queries, heads.value.size(3)}, heads.query.options()),
      at::empty({batch, count, queries, 1}, heads.query.options())};
  for (std::int64_t first = 0; first < queries; first += kQueries) {
    const std::int64_t some = std::min(kQueries, queries - first);
    at::Tensor weights = partial_scores(heads.query.narrow(2, first, some), heads.key, how, first);
    const at::Tensor largest = weights.amax(-1, /*keepdim=*/true);
    const at::Tensor shift = lse_or(largest, 0);
    weights.sub_(shift).exp_();
    const at::Tensor sum = weights.sum(-1, /*keepdim=*/true);
    result.lse.narrow(2, first, some).copy_(sum.log().add_(shift));
    drop_partly(weights, how, first);
    const at::Tensor output = of_heads(at::matmul(by_group(weights, groups), heads.value), count);
    result.output.narrow(2, first, some).copy_(output.div_(sum.masked_fill(sum == 0, 1)));
  }
  return result;
}

void add_partial(const PartialAttention& sum, const PartialAttention& more) {
  const at::Tensor lse = at::logaddexp(sum.lse, more.lse);
  const at::Tensor shift = lse_or(lse, 0);  // exp(-Inf - 0) is 0
  sum.output.mul_((sum.lse - shift).exp_()).add_(more.output * (more.lse - shift).exp_());
  sum.lse.copy_(lse);
}

void add_partial_gradients(const PartialHeads& heads, const PartialScores& how,
                           const AttentionGradients& gradients, const PartialGradients& into) {
  const std::int64_t queries = heads.query.size(2);
  const std::int64_t groups = heads.key.size(1);
  if (heads.key.size(2) == 0) return;
  const at::Tensor lse =
      lse_or(gradients.lse, kInfinity);  // a query that sees nothing has weights 0
  for (std::int64_t first = 0; first < queries; first += kQueries) {
    const std::int64_t some = std::min(kQueries, queries - first);
    const at::Tensor query = heads.query.narrow(2, first, some);
    const at::Tensor output = gradients.output.narrow(2, first, some);
    const at::Tensor weights =
        partial_scores(query, heads.key, how, first).sub_(lse.narrow(2, first, some)).exp_();
    at::Tensor dropped = how.kept ? weights.clone() : weights;
    drop_partly(dropped, how, first);
    into.heads.value.add_(
        at::matmul(by_group(dropped, groups).transpose(-1, -2), by_group(output, groups)));
    at::Tensor of_weights = of_heads(
        at::matmul(by_group(output, groups), heads.value.transpose(-1, -2)), query.size(1));
    drop_partly(of_weights, how, first);
    const at::Tensor of_scores =
        of_weights.sub_(gradients.delta.narrow(2, first, some)).mul_(weights);
    if (into.bias) {
      const at::Tensor own = *rows(into.bias, first, some);
      own.add_(of_scores.sum_to_size(own.sizes()));
    }
    of_scores.mul_(how.scale);
    const at::Tensor grouped = by_group(of_scores, groups);
    into.heads.query.narrow(2, first, some)
        .add_(of_heads(at::matmul(grouped, heads.key), query.size(1)));
    into.heads.key.add_(at::matmul(grouped.transpose(-1, -2), by_group(query, groups)));
  }
}

}  // namespace telens
