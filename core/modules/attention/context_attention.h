// Attention of which each rank has two chunks of every sequence (context_order.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

#include "core/modules/attention/attention_quantization.h"
#include "core/modules/attention/attention_scores.h"
#include "core/modules/attention/context_mask.h"
#include "core/modules/attention/context_order.h"
#include "core/modules/attention/context_parallel.h"

namespace telens {

struct ContextAttention {
  ContextParallel parallel;
  ContextPositions query;
  ContextPositions key;
  SeenSpan span = {};
  double dropout = 0;
  double scale = 1;
  std::optional<at::Tensor> bias = {};   // a ring's alone, as RingAttention has it
  std::optional<Fp8Attention> fp8 = {};  // how the ring casts; LocalAttention knows for itself
};

// Attention in one process: of some heads over whole sequences, or of some queries to all keys that
// they may see (a mask that is set).
struct LocalAttention {
  // first_head: of those of the query that this rank has.
  std::function<at::Tensor(const QueryKeyValueHeads&, std::int64_t first_head)> whole;
  std::function<at::Tensor(const QueryKeyValueHeads&, const ScoredAttention&)> masked;
};

// heads: this rank's chunks, [batch, heads, seq, size] -> [batch, heads, seq, value size] of the
// same queries. Every rank of the groups calls it. Throws UsageError where the ranks do not divide
// the heads.
at::Tensor attend_in_context(const QueryKeyValueHeads& heads, const ContextAttention& how,
                             const LocalAttention& local);

}  // namespace telens
