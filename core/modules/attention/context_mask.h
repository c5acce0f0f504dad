// The keys that queries see, by the places that both have in their sequences.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace telens {

struct SeenSpan {
  bool causal = false;
  std::int64_t left = -1;  // visible distance before a query; -1 if unlimited
  std::int64_t right = -1;
};

// Computes the mask from positions. query: int64 [batch or 1, seq_q], key: [batch or 1, seq_kv], -1
// for padding -> boolean [batch or 1, 1, seq_q, seq_kv].
at::Tensor allowed_keys(const at::Tensor& query, const at::Tensor& key, const SeenSpan& span);

}  // namespace telens
