// Statistics of an attention's scores as operator `telens::attention_statistics`. It computes them
// anew from queries and keys, a block of them at a time: no more than kScoresOfBlock scores exist
// at once, unless one query of one sample has more.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "core/base/error.h"

namespace telens::ops {

// softmax's argument is query key^T * scale + bias where a key is seen.
struct AttentionScores {
  at::Tensor query;                        // [batch, heads, seq_q, size]
  at::Tensor key;                          // [batch, groups, seq_kv, size]; groups divide heads
  std::optional<at::Tensor> allowed = {};  // boolean, broadcast to [batch, heads, seq_q, seq_kv]
  std::optional<at::Tensor> blind = {};    // boolean [..., seq_q, 1]: sees nothing, allowed or not
  std::optional<at::Tensor> bias = {};     // broadcast to the same; where it is -Inf no key is seen
  std::optional<at::Tensor> offset = {};   // the sink's, [1, heads, 1, 1]; nothing: 0
  bool is_causal = false;                  // query i sees keys 0..i, beside `allowed`
  bool has_sink = false;                   // exp(offset) is added to the softmax's sum
  double scale = 1;
  // Where masks and biases are made for some samples and queries at a time: all scores of these,
  // with `allowed`, `blind` and `bias` set and `is_causal` unset. They are unset in what has it.
  std::function<AttentionScores(std::int64_t sample, std::int64_t samples, std::int64_t query,
                                std::int64_t queries)>
      part = {};
};

inline constexpr std::int64_t kScoresOfBlock = std::int64_t{1} << 19;

// int64 [kTensorSumsWords + kScoreSumsWords] on query's device: TensorSums of the scores that are
// seen, of which the counts, zeros, subnormals (of FP32), min and max are filled, then ScoreSums.
// Scores are FP32, FP64 where query is; sums over rows are FP64. A sink takes part in a row's
// entropy as one more outcome, but it is no key. Equal inputs give equal bits on one device and
// with one number of threads. Throws ShapeError for other shapes.
TELENS_EXPORT at::Tensor attention_statistics(const AttentionScores& scores);

}  // namespace telens::ops
