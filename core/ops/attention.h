// Operators of attention: statistics of its scores and dropout of its weights. Also the kernel that
// an attention ran with.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/formats/scheme.h"

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

// Statistics of an attention's scores, as operator `telens::attention_statistics`. Recomputes the
// scores from queries and keys, one block at a time: at most kScoresOfBlock scores exist at once,
// unless a single query of a sample has more.
//
// Returns int64 [kTensorSumsWords + kScoreSumsWords] on query's device: TensorSums of the visible
// scores, then ScoreSums. TensorSums contains only the counts, zeros, subnormals (of FP32), min and
// max. Scores are FP32, or FP64 if query is FP64; sums over rows are FP64. A sink counts as one
// more outcome in a row's entropy, but not as a key. Equal inputs give equal bits on the same
// device with the same number of threads. Throws ShapeError for other shapes.
TELENS_EXPORT at::Tensor attention_statistics(const AttentionScores& scores);

// The kernel that an attention ran with and the reason, as the hook points report them.
struct AttentionChoice {
  std::string_view kernel = {};  // a literal, such as "flash attention"; "" if no kernel was chosen
  std::string reason = {};       // why no faster kernel was chosen; "" if there is none
  // The dtype in which the kernel receives queries, keys and values.
  at::ScalarType computed_in = at::kFloat;
  std::string_view widened_by = "the mask of scores is in this dtype";  // if not their dtype
  // The FP8 format to which the recipe casts them (fp8_dpa); "" if it does not cast them.
  std::string_view cast_to = {};
  ScalingMode cast_in = ScalingMode::tensor;  // the scaling of that cast
};

// Dropout of attention weights by a key, as operator `telens::keyed_dropout_`: whether a weight is
// kept depends on a seed and on its position among all weights, not on how they are split into
// blocks.
struct KeyedDropout {
  std::int64_t seed = 0;
  double probability = 0;  // that a weight is dropped, from 0 to 1
  // The position of the first weight, each index below 2^32.
  std::int64_t sample = 0;
  std::int64_t head = 0;
  std::int64_t query = 0;
  std::int64_t key = 0;
};

// weights: contiguous [samples, heads, queries, keys], FP32 or FP64; multiplied in place by 0 or by
// 1 / (1 - probability), all by 0 if probability is 1. Weight (sample, head, query, key) is kept if
// word key % 4 of Philox4x32-7 (https://doi.org/10.1145/2063384.2063405; its key is the seed, its
// counter (key / 4, query, sample, head)) is below (1 - probability) * 2^32. Throws ShapeError for
// other weights.
TELENS_EXPORT void keyed_dropout_(const at::Tensor& weights, const KeyedDropout& dropout);

// The checks of keyed_dropout_ that every device shares. place: sample, head, query and key of the
// first weight.
void check_keyed_dropout(const at::Tensor& weights, double probability, at::IntArrayRef place);

}  // namespace telens::ops
