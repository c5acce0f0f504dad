// Attention over [batch, heads, seq, size] by LibTorch's scaled_dot_product_attention, which has
// masks and additive biases; a term more in the softmax's sum is a key and a value of zeros.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "core/modules/attention/attention_mask.h"
#include "core/ops/attention_choice.h"

namespace telens {

struct ScoredAttention {
  AttentionMask mask;
  std::optional<at::Tensor> bias = {};    // added to scaled scores, broadcastable
  bool has_sink = false;                  // exp(offset) is added to the softmax's sum
  std::optional<at::Tensor> offset = {};  // [1, heads, 1, 1]; nullopt counts as 0
  double dropout = 0;
  double scale = 1;
  bool grouped = false;  // key and value have fewer heads than the query
  // Receives the kernel. If null, LibTorch is not queried for it.
  std::shared_ptr<ops::AttentionChoice> choice = {};
};

struct QueryKeyValueHeads {
  at::Tensor query;  // [batch, heads, seq_q, size]
  at::Tensor key;    // [batch, groups, seq_kv, size]
  at::Tensor value;  // [batch, groups, seq_kv, value size]
};

// The dtype of terms of scores: FP64 for FP64, else FP32. BF16 has too few digits for a distance
// times a slope.
at::ScalarType mask_dtype(const at::Tensor& query);

// Returns [batch, heads, seq_q, value size]; 0 for fully masked queries. Calls LibTorch's
// scaled_dot_product_attention, which supports masks and additive biases. A sink is an additional
// key with a value of zeros.
at::Tensor attend_heads(const QueryKeyValueHeads& heads, const ScoredAttention& how);

}  // namespace telens
