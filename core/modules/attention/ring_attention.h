// Attention to keys and values that travel round a ring of ranks: each rank has some of the queries
// of every sequence and sees all keys in turn (https://arxiv.org/abs/2310.01889).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "core/distributed/process_group.h"
#include "core/modules/attention/attention_scores.h"
#include "core/modules/attention/context_order.h"
#include "core/quantization/quantizer.h"

namespace telens {

struct RingAttention {
  ProcessGroupPtr group;
  ContextPositions query;
  ContextPositions key;
  bool causal = false;  // queries and keys then lie alike
  double dropout = 0;
  double scale = 1;
  // [batch or 1, heads or 1, seq_q or 1, seq_kv], added to scaled scores: of this rank's queries
  // and all ranks' keys in their natural order.
  std::optional<at::Tensor> bias = {};
  // The products of each step multiply codes in blocks (fp8_operands.h), these of query, key and
  // value, those of the output's gradient. nullptr: what came.
  std::shared_ptr<Quantizer> qkv = {};
  std::shared_ptr<Quantizer> d_o = {};
};

// heads: this rank's chunks, [batch, heads, seq, size]; the result is of the query's dtype. Sums
// are FP32 (FP64 for FP64), in the forward and for gradients.
at::Tensor attend_in_ring(const QueryKeyValueHeads& heads, const RingAttention& how);

}  // namespace telens
