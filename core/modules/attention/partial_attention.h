// Attention of queries to some of their keys: a partial result and the logarithm of its softmax's
// sum, with which partial results for other keys are combined (https://arxiv.org/abs/2205.14135).
// Uses LibTorch's operators, a few queries at a time, in the dtype of its inputs, FP32 or FP64.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "core/modules/attention/score_block.h"

namespace telens {

// Rows of queries whose scores are computed together.
struct QueryRows {
  std::int64_t first;
  std::int64_t count;

  at::Tensor of(const at::Tensor& rows) const { return rows.narrow(-2, first, count); }
};

// Calls `use` with all rows, some at a time.
template <typename Call>
void for_query_rows(std::int64_t queries, const Call& call) {
  constexpr std::int64_t kRowsAtOnce = 256;
  for (std::int64_t first = 0; first < queries; first += kRowsAtOnce) {
    call(QueryRows{first, std::min(kRowsAtOnce, queries - first)});
  }
}

struct PartialScores {
  std::optional<at::Tensor> allowed = {};  // boolean [batch or 1, 1, seq_q, seq_kv]; nothing: all
  std::optional<at::Tensor> kept = {};     // boolean [batch, heads, seq_q, seq_kv]: kept by dropout
  double keep = 1;                         // probability of `kept`
  double scale = 1;
  std::optional<at::Tensor> factor = {};  // FP32, 1 element, replaces scale for codes
  std::optional<at::Tensor> bias = {};    // added to scaled scores, broadcastable
};

struct PartialHeads {
  at::Tensor query;  // [batch, heads, seq_q, size]
  at::Tensor key;    // [batch, groups, seq_kv, size]
  at::Tensor value;  // [batch, groups, seq_kv, value size]
};

struct PartialAttention {
  at::Tensor output;  // [batch, heads, seq_q, value size]; 0 if fully masked
  at::Tensor lse;     // [batch, heads, seq_q, 1]; -Inf if fully masked
};

// Returns the result of queries [batch, heads, seq_q, size] without keys, in their dtype.
PartialAttention nothing_seen(const at::Tensor& query, const at::Tensor& value);

PartialAttention attend_partly(const PartialHeads& heads, const PartialScores& scores);

// Adds the result for more keys of the same queries to `sum`. Both are finite unless fully masked.
void add_partial(const PartialAttention& sum, const PartialAttention& more);

// Operands of the GEMMs that sum over queries or keys, of the same shapes, if their codes differ
// (fp8_operands.h).
struct OverPositions {
  at::Tensor query;
  at::Tensor key;
  at::Tensor output;  // the gradient
};

// Values over all keys for a backward.
struct AttentionGradients {
  at::Tensor output;  // gradient of the whole output, [batch, heads, seq_q, value size]
  at::Tensor delta;   // [batch, heads, seq_q, 1]: sum of output times its gradient
  at::Tensor lse;     // over all keys
  std::optional<OverPositions> over_positions = {};
};

struct PartialGradients {
  PartialHeads heads;
  std::optional<at::Tensor> bias = {};  // nullopt without a bias
};

// Adds the gradients of these heads and of their bias to `into`.
void add_partial_gradients(const PartialHeads& heads, const PartialScores& scores,
                           const AttentionGradients& gradients, const PartialGradients& into);

// Parts of the functions above for FP8 attention, for some rows of queries.

// [batch, heads, rows, seq_kv], scaled and biased; -Inf for hidden keys.
at::Tensor partial_scores(const PartialHeads& heads, const PartialScores& how,
                          const QueryRows& rows);

// Replaces scores [batch, heads, rows, seq_kv] with exp(score - row maximum) and stores the
// log-sum-exp in lse. Returns the divisor of the exponentials.
at::Tensor exponentiate(const at::Tensor& scores, const at::Tensor& lse);

// Applies dropout to these rows' weights or gradients.
void drop_partly(at::Tensor& weights, const PartialScores& how, const QueryRows& rows);

}  // namespace telens
