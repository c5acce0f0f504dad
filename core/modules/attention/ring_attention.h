// Ring attention: each rank has some queries of every sequence and attends to the keys and values
// of every rank, which travel around a ring (https://arxiv.org/abs/2310.01889). Partial results are
// combined by their log-sum-exp (https://arxiv.org/abs/2205.14135).
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
  bool causal = false;  // queries and keys have the same positions
  double dropout = 0;
  double scale = 1;
  // [batch or 1, heads or 1, seq_q or 1, seq_kv], added to scaled scores: this rank's queries, all
  // ranks' keys in natural order.
  std::optional<at::Tensor> bias = {};
  // The quantizers of query, key and value, and of the output gradient, if the GEMMs multiply codes
  // in blocks (fp8_operands.h); nullptr if they multiply the given tensors.
  std::shared_ptr<Quantizer> qkv = {};
  std::shared_ptr<Quantizer> d_o = {};
};

// heads: this rank's chunks, [batch, heads, seq, size]; the result has the query's dtype. Sums are
// FP32 (FP64 for FP64), in the forward and for gradients.
at::Tensor attend_in_ring(const QueryKeyValueHeads& heads, const RingAttention& how);

}  // namespace telens
