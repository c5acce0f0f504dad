// The softmax of an attention over FP8 codes, a few queries at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

#include "core/modules/attention/attention_scores.h"

namespace telens {

// FP32 values of codes, without a scale.
struct CodedHeads {
  at::Tensor query;  // [batch, heads, seq_q, size]
  at::Tensor key;    // [batch, groups, seq_kv, size]
  at::Tensor value;  // [batch, groups, seq_kv, value size]
  at::Tensor scale_inv;
};

// Rows of queries whose scores are there at one time.
struct QueryRows {
  std::int64_t first;
  std::int64_t count;

  at::Tensor of(const at::Tensor& rows) const { return rows.narrow(-2, first, count); }
  // A tensor that broadcasts along the queries stays as it is.
  at::Tensor of_broadcast(const at::Tensor& rows) const {
    return rows.dim() < 2 || rows.size(-2) == 1 ? rows : of(rows);
  }
};

// Calls with all rows, some at a time; not at all where there are none.
void for_query_rows(std::int64_t queries, const std::function<void(const QueryRows&)>& call);

struct SoftmaxRows {
  at::Tensor weights;  // [batch, heads, rows, seq_kv]; 0 where a query sees no key
  at::Tensor sink;     // [batch, heads, rows, 1], the sink's weight; undefined: there is none
};

// FP32. Dropout is the caller's. Keeps the newest result for the same rows.
class Fp8Softmax {
 public:
  Fp8Softmax(const CodedHeads& heads, const ScoredAttention& how);

  const SoftmaxRows& of(const QueryRows& rows);

 private:
  at::Tensor scores(const QueryRows& rows) const;

  const CodedHeads& heads_;
  const ScoredAttention& how_;
  at::Tensor factor_;  // that of the products
  std::int64_t kept_ = -1;
  SoftmaxRows newest_;
};

// [batch, heads, n, size] -> [batch, groups, heads of a group * n, size]: one product for all heads
// that share a key; and back.
at::Tensor heads_by_group(const at::Tensor& x, std::int64_t groups);
at::Tensor groups_by_head(const at::Tensor& x, std::int64_t heads);

}  // namespace telens
