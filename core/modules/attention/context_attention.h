// Attention in which each rank has two chunks of every sequence (context_parallel.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

#include "core/modules/attention/attention_quantization.h"
#include "core/modules/attention/attention_scores.h"
#include "core/modules/attention/context_parallel.h"

namespace telens {

struct ContextAttention {
  ContextParallel parallel;
  ContextPositions query;
  ContextPositions key;
  SeenSpan span = {};
  double dropout = 0;
  double scale = 1;
  std::optional<at::Tensor> bias = {};   // of a ring (RingAttention::bias)
  std::optional<Fp8Attention> fp8 = {};  // quantization of the ring
};

// Attention in one process: some heads of whole sequences, or some queries and all keys that are
// visible to them (if a mask is given).
struct LocalAttention {
  // first_head: the index of the first of this rank's query heads.
  std::function<at::Tensor(const QueryKeyValueHeads&, std::int64_t first_head)> whole;
  std::function<at::Tensor(const QueryKeyValueHeads&, const ScoredAttention&)> masked;
};

// heads: this rank's chunks, [batch, heads, seq, size] -> [batch, heads, seq, value size]. Call on
// every rank of the groups. Throws UsageError if the heads are not divisible by the ranks.
at::Tensor attend_in_context(const QueryKeyValueHeads& heads, const ContextAttention& how,
                             const LocalAttention& local);

// ---- start and end of an FP8 attention that is computed as several partial attentions: its
// results are sums of decoded values

// Returns the same tensors. When all gradients are available, their backward quantizes them under
// one scale if the projections reuse that scale (fp8_mha), and ends the region's backward.
QueryKeyValueHeads with_ended_gradients(const QueryKeyValueHeads& heads, const Fp8Attention& fp8);

// Returns the output, rounded to FP8 values if the following projection reuses the scale. [batch,
// heads, seq, size]. The gradient is passed through.
at::Tensor end_output(const at::Tensor& output, const Fp8Attention& fp8);

}  // namespace telens
