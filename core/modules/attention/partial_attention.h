// Attention of queries to some of their keys: a result and the logarithm of its softmax's sum, by
// which partial results of other keys are added to it (https://arxiv.org/abs/2205.14135). Plain
// operators of LibTorch, a few queries at a time, in the dtype of what comes in, FP32 or FP64.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "core/modules/attention/query_rows.h"

namespace telens {

struct PartialScores {
  std::optional<at::Tensor> allowed = {};  // boolean [batch or 1, 1, seq_q, seq_kv]; nothing: all
  std::optional<at::Tensor> kept = {};     // boolean [batch, heads, seq_q, seq_kv]: dropout's
  double keep = 1;                         // probability of it
  double scale = 1;
  std::optional<at::Tensor> factor = {};  // FP32, 1 element, in the place of scale: that of codes
  std::optional<at::Tensor> bias = {};    // added to scaled scores, broadcast to all of them
};

struct PartialHeads {
  at::Tensor query;  // [batch, heads, seq_q, size]
  at::Tensor key;    // [batch, groups, seq_kv, size]
  at::Tensor value;  // [batch, groups, seq_kv, value size]
};

struct PartialAttention {
  at::Tensor output;  // [batch, heads, seq_q, value size]; 0 where a query sees no key
  at::Tensor lse;     // [batch, heads, seq_q, 1]; -Inf where a query sees no key
};

// That of queries [batch, heads, seq_q, size] which have seen no key, in their dtype.
PartialAttention nothing_seen(const at::Tensor& query, const at::Tensor& value);

PartialAttention attend_partly(const PartialHeads& heads, const PartialScores& scores);

// sum becomes that of itself and more, of the same queries; both are finite where one is.
void add_partial(const PartialAttention& sum, const PartialAttention& more);

// The products that add over queries or keys multiply these, of the same shapes, where others
// multiply other codes (fp8_operands.h).
struct OverPositions {
  at::Tensor query;
  at::Tensor key;
  at::Tensor output;  // the gradient
};

// A backward knows this of all keys together.
struct AttentionGradients {
  at::Tensor output;  // gradient of the whole output, [batch, heads, seq_q, value size]
  at::Tensor delta;   // [batch, heads, seq_q, 1]: sum of output times its gradient
  at::Tensor lse;     // that of all keys
  std::optional<OverPositions> over_positions = {};
};

struct PartialGradients {
  PartialHeads heads;
  std::optional<at::Tensor> bias = {};  // the bias's sizes; nothing: there is none
};

// Adds the gradients of these heads, and of their bias, to those in `into`.
void add_partial_gradients(const PartialHeads& heads, const PartialScores& scores,
                           const AttentionGradients& gradients, const PartialGradients& into);

// Parts of the above for attentions that cast what lies between, of some rows of the queries.

// [batch, heads, rows, seq_kv], scaled and biased; -Inf where a key is not seen.
at::Tensor partial_scores(const PartialHeads& heads, const PartialScores& how,
                          const QueryRows& rows);

// Puts exp(score - the largest of its row) in the place of scores [batch, heads, rows, seq_kv], and
// the logarithm of the softmax's sum in lse. Returns what the exponentials are to be divided by.
at::Tensor exponentiate(const at::Tensor& scores, const at::Tensor& lse);

// Dropout of these rows' weights, or of their gradients.
void drop_partly(at::Tensor& weights, const PartialScores& how, const QueryRows& rows);

}  // namespace telens
