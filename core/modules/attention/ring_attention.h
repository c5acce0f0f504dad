// Ring attention: each rank has some queries of every sequence and attends to the keys and values
// of every rank, which travel around a ring (https://arxiv.org/abs/2310.01889). Partial results are
// combined by their log-sum-exp (https://arxiv.org/abs/2205.14135).
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/distributed/collectives.h"
#include "core/distributed/process_group.h"
#include "core/modules/attention/attention_quantization.h"
#include "core/modules/attention/attention_scores.h"
#include "core/modules/attention/context_parallel.h"
#include "core/modules/attention/score_block.h"
#include "core/quantization/quantizer.h"

namespace telens {

struct RingAttention {
  ProcessGroupPtr group;
  ContextPositions query;
  ContextPositions key;
  bool causal = false;  // queries and keys have the same positions
  double dropout = 0;
  double scale = 1;
  // [batch or 1, heads or 1, seq_q or 1, seq_kv], added to scaled scores: this rank's queries, all
  // ranks' keys in natural order.
  std::optional<at::Tensor> bias = {};
  // The quantizers of query, key and value, and of the output gradient, if the GEMMs multiply codes
  // in blocks (fp8_attention.h); nullptr if they multiply the given tensors.
  std::shared_ptr<Quantizer> qkv = {};
  std::shared_ptr<Quantizer> d_o = {};
};

// heads: this rank's chunks, [batch, heads, seq, size]; the result has the query's dtype. Sums are
// FP32 (FP64 for FP64), in the forward and for gradients.
at::Tensor attend_in_ring(const QueryKeyValueHeads& heads, const RingAttention& how);

// Like attend_in_ring(), for BF16, FP16 and FP32, with per-tensor FP8 scales and without a bias
// (fp8_ring_attention.cpp has the casts). The caller ends the region's backward. Throws ShapeError
// for FP64.
at::Tensor attend_in_fp8_ring(const QueryKeyValueHeads& heads, const RingAttention& how,
                              const Fp8Attention& fp8);

// ---- the steps in which a rank's queries see the keys and values that travel around the ring

// Keys and values, or their gradients, packed into the tensor that travels.
class Travelers {
 public:
  Travelers(const at::Tensor& key, const at::Tensor& value)
      : key_sizes_(key.sizes().vec()), value_sizes_(value.sizes().vec()) {}

  static at::Tensor pack(const at::Tensor& key, const at::Tensor& value);
  at::Tensor key(const at::Tensor& packed) const;
  at::Tensor value(const at::Tensor& packed) const;

 private:
  std::int64_t key_numel() const { return c10::multiply_integers(key_sizes_); }

  std::vector<std::int64_t> key_sizes_;
  std::vector<std::int64_t> value_sizes_;
};

// A range of positions of this rank's two chunks.
struct RingPart {
  std::int64_t first;
  std::int64_t count;

  at::Tensor of(const at::Tensor& x, std::int64_t dim = 2) const {
    return x.narrow(dim, first, count);
  }
};

// One step: some queries attend to some keys of a rank.
struct RingStep {
  RingPart query;
  RingPart key;
  RingPart of_all_keys;  // these keys in rank order
  std::optional<at::Tensor> allowed;

  // The part of a bias (or its gradient) with keys in rank order.
  std::optional<at::Tensor> of_bias(const std::optional<at::Tensor>& bias) const;
};

// The steps of a rank, forward and backward. Refers to `how`.
class Ring {
 public:
  // Lengths of this rank's queries and keys.
  Ring(const RingAttention& how, std::int64_t queries, std::int64_t keys);

  std::int64_t steps() const { return at_.size; }
  RingStep step(std::int64_t index) const;

  // Calls `use` with the step's index, the step, and the keys and values that are present, while
  // they are sent to the next rank. packed: this rank's.
  template <typename Call>
  void for_steps(at::Tensor packed, const Call& call) const {
    for (std::int64_t i = 0; i < steps(); ++i) {
      PendingTensor next;
      if (i + 1 < steps()) next = pass(packed, RingChannel::values);
      call(static_cast<std::size_t>(i), step(i), packed);
      if (next.defined()) packed = next.wait();
    }
  }

  PendingTensor pass(const at::Tensor& x, RingChannel channel) const {
    return pass_to_next_rank(x, how_.group, channel, /*is_shown=*/true);
  }

  // Reorder the keys of a bias to rank order, and back.
  std::optional<at::Tensor> rank_by_rank(const std::optional<at::Tensor>& bias,
                                         at::ScalarType dtype) const;
  at::Tensor in_natural_order(const at::Tensor& bias) const;

  // Dropout's choices for a step, boolean [batch, heads, queries, keys]; nullopt without dropout.
  std::optional<at::Tensor> draw_kept(const at::Tensor& query, const at::Tensor& key) const;

 private:
  const RingAttention& how_;
  std::int64_t queries_;
  std::int64_t keys_;
  ContextRank at_;
};

// ---- Partial attention: attention of queries to some of their keys, with the logarithm of its
// softmax's sum, by which partial results for other keys are combined. Uses LibTorch's operators, a
// few queries at a time, in the dtype of its inputs, FP32 or FP64.

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
// (fp8_attention.h).
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
