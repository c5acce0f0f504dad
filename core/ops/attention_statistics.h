// Statistics of an attention's scores as operator `telens::attention_statistics`. It recomputes
// scores from queries and keys, one block at a time: at most kScoresOfBlock scores exist at once,
// unless a single query of a sample has more.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "core/base/error.h"

namespace telens::ops {

// The argument of softmax is query key^T * scale + bias for visible keys.
struct AttentionScores {
  at::Tensor query;                        // [batch, heads, seq_q, size]
  at::Tensor key;                          // [batch, groups, seq_kv, size]; groups divide heads
  std::optional<at::Tensor> allowed = {};  // boolean, broadcast to [batch, heads, seq_q, seq_kv]
  std::optional<at::Tensor> blind = {};    // boolean [..., seq_q, 1]: the query sees no key at all
  std::optional<at::Tensor> bias = {};     // broadcast to the same shape; -Inf hides a key
  std::optional<at::Tensor> offset = {};   // of the sink, [1, heads, 1, 1]; nullopt means 0
  bool is_causal = false;                  // query i sees only keys 0..i; `allowed` also applies
  bool has_sink = false;                   // exp(offset) is added to the softmax's sum
  double scale = 1;
  // Set if masks and biases are created for some samples and queries at a time. Returns all scores
  // of these, with `allowed`, `blind` and `bias` set and `is_causal` unset. An object with `part`
  // does not set those four members.
  std::function<AttentionScores(std::int64_t sample, std::int64_t samples, std::int64_t query,
                                std::int64_t queries)>
      part = {};
};

inline constexpr std::int64_t kScoresOfBlock = std::int64_t{1} << 19;

// Returns int64 [kTensorSumsWords + kScoreSumsWords] on query's device: TensorSums of the visible
// scores, then ScoreSums. TensorSums contains only the counts, zeros, subnormals (of FP32), min and
// max. Scores are FP32, or FP64 if query is FP64; sums over rows are FP64. A sink counts as one
// more outcome in a row's entropy, but not as a key. Equal inputs give equal bits on the same
// device with the same number of threads. Throws ShapeError for other shapes.
TELENS_EXPORT at::Tensor attention_statistics(const AttentionScores& scores);

}  // namespace telens::ops
