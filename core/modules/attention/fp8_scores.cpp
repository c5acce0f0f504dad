#include "core/modules/attention/fp8_scores.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

namespace telens {
namespace {

constexpr double kUnseen = -std::numeric_limits<double>::infinity();
constexpr std::int64_t kRowsAtOnce = 256;

// The keys that the rows may see; undefined: every key.
at::Tensor seen_by(const QueryRows& rows, const AttentionMask& mask, const at::Tensor& scores) {
  if (mask.allowed) return rows.of_broadcast(*mask.allowed);
  if (!mask.is_causal) return {};
  return at::ones({rows.count, scores.size(-1)}, scores.options().dtype(at::kBool))
      .tril(rows.first);
}

}  // namespace

void for_query_rows(std::int64_t queries, const std::function<void(const QueryRows&)>& call) {
  for (std::int64_t first = 0; first < queries; first += kRowsAtOnce) {
    call({first, std::min(kRowsAtOnce, queries - first)});
  }
}

at::Tensor heads_by_group(const at::Tensor& x, std::int64_t groups) {
  return x.reshape({x.size(0), groups, x.size(1) / groups * x.size(2), x.size(3)});
}

at::Tensor groups_by_head(const at::Tensor& x, std::int64_t heads) {
  return x.reshape({x.size(0), heads, x.size(1) * x.size(2) / heads, x.size(3)});
}

Fp8Softmax::Fp8Softmax(const CodedHeads& heads, const ScoredAttention& how)
    : heads_(heads), how_(how), factor_(heads.scale_inv * heads.scale_inv * how.scale) {}

at::Tensor Fp8Softmax::scores(const QueryRows& rows) const {
  const at::Tensor query = heads_by_group(rows.of(heads_.query), heads_.key.size(1));
  at::Tensor scores =
      groups_by_head(at::matmul(query, heads_.key.transpose(-1, -2)), heads_.query.size(1))
          .mul_(factor_);
  if (how_.bias) scores.add_(rows.of_broadcast(*how_.bias));
  const at::Tensor seen = seen_by(rows, how_.mask, scores);
  return seen.defined() ? scores.masked_fill_(seen.logical_not(), kUnseen) : scores;
}

const SoftmaxRows& Fp8Softmax::of(const QueryRows& rows) {
  if (kept_ == rows.first) return newest_;
  at::Tensor weights = scores(rows);
  at::Tensor largest = weights.amax(-1, /*keepdim=*/true);
  at::Tensor sink;
  if (how_.has_sink) {
    sink = how_.offset ? how_.offset->to(at::kFloat) : at::zeros({1, 1, 1, 1}, weights.options());
    largest = at::maximum(largest, sink);
  }
  const at::Tensor shift = largest.masked_fill(largest == kUnseen, 0);
  weights.sub_(shift).exp_();
  at::Tensor sum = weights.sum(-1, /*keepdim=*/true);
  if (sink.defined()) {
    sink = (sink - shift).exp_();
    sum = sum + sink;
    sink.div_(sum);
  }
  weights.div_(sum.masked_fill(sum == 0, 1));
  if (how_.mask.blind) {
    const at::Tensor blind = rows.of_broadcast(*how_.mask.blind);
    weights.masked_fill_(blind, 0);
    if (sink.defined()) sink.masked_fill_(blind, 0);
  }
  kept_ = rows.first;
  newest_ = {std::move(weights), std::move(sink)};
  return newest_;
}

}  // namespace telens
