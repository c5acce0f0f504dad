// The scores of an attention in blocks, so that the full matrix is never materialized.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <limits>

#include "core/base/error.h"

namespace telens {

struct ScoreShape {
  std::int64_t batch;
  std::int64_t heads;
  std::int64_t groups;  // heads of the keys; a divisor of the heads
  std::int64_t queries;
  std::int64_t keys;

  std::int64_t heads_of_group() const { return heads / groups; }
  std::int64_t scores() const { return batch * heads * queries * keys; }
};

// query: [batch, heads, seq_q, size], key: [batch, groups, seq_kv, size]
ScoreShape score_shape(const at::Tensor& query, const at::Tensor& key);

// Some samples, groups of heads, queries and keys.
struct ScoreBlock {
  std::int64_t sample, samples;
  std::int64_t group, groups;
  std::int64_t query, queries;
  std::int64_t key, keys;
  std::int64_t heads_of_group;

  std::int64_t head() const { return group * heads_of_group; }
  std::int64_t heads() const { return groups * heads_of_group; }

  // Views of this block: of [batch, heads, seq_q, n], of [batch, groups, seq_kv, n], and of tensors
  // that broadcast to [batch, heads, seq_q, seq_kv].
  at::Tensor of_queries(const at::Tensor& x) const;
  at::Tensor of_keys(const at::Tensor& x) const;
  at::Tensor of_scores(const at::Tensor& x) const;

  bool operator==(const ScoreBlock&) const = default;
};

ScoreBlock whole_block(const ScoreShape& shape);

// GEMMs of an attention, each batched over the heads that share a key.

// query [samples, heads, queries, size] key^T [samples, groups, keys, size]
//   -> [samples, heads, queries, keys]. Also for the output gradient and the values.
at::Tensor compute_products(const at::Tensor& query, const at::Tensor& key);

// weights [samples, heads, queries, keys] rows [samples, groups, keys, size]
//   -> [samples, heads, queries, size]
at::Tensor sum_over_keys(const at::Tensor& weights, const at::Tensor& rows);

// weights^T [samples, heads, queries, keys] rows [samples, heads, queries, size]
//   -> [samples, groups, keys, size], summed over the heads of a group
at::Tensor sum_over_queries(const at::Tensor& weights, const at::Tensor& rows, std::int64_t groups);

// A half-open range of keys.
struct KeyRange {
  std::int64_t first;
  std::int64_t last;
};

struct BlockedScores {
  ScoreShape shape;
  std::int64_t scores_of_block;
  // The keys visible to some queries of some samples; the block contains no others. If not called,
  // all keys.
  std::function<KeyRange(const ScoreBlock&)> keys = {};
};

// Calls `use` with blocks of at least one key and at most scores_of_block scores, unless one query
// of a group has more. Covers all queries of all heads exactly once. Does nothing if there are no
// scores.
void for_score_blocks(const BlockedScores& blocks,
                      const std::function<void(const ScoreBlock&)>& call);

// Limits of block sizes.
struct BlockLimits {
  // The largest number of scores of all heads that is materialized on a CPU (16 MiB of FP32).
  std::int64_t most_whole = std::int64_t{2048} * 2048;
  // Scores per block: fits in the L2 cache during the softmax.
  std::int64_t of_block = std::int64_t{1} << 19;
};

// The limits of the process; tests reduce them.
TELENS_EXPORT BlockLimits& block_limits();

// Returns the scores per block on query's device; larger on devices other than the CPU.
std::int64_t scores_of_block(const at::Tensor& query);

// The score of a key that a query does not see is -Inf, and so is the logarithm of the softmax's
// sum of a query that sees none.
constexpr double kUnseen = -std::numeric_limits<double>::infinity();

inline at::Tensor seen_or(const at::Tensor& x, double instead) {
  return x.masked_fill(x == kUnseen, instead);
}

// Dropout of attention weights, block by block. Whether a weight is kept depends on a seed and on
// its position, so blocks of any size drop the same ones and nothing is saved for the backward.
class ScoreDropout {
 public:
  ScoreDropout() = default;  // no dropout

  // Draws one number from the CPU's default generator, independent of the sizes.
  static ScoreDropout seeded(double probability);
  // Draws all choices at once from the default generator of query's device, for devices without a
  // kernel for seeded choices.
  static ScoreDropout drawn(const ScoreShape& shape, const at::Tensor& query, double probability);

  // The choices drawn at once; undefined for seeded choices.
  const at::Tensor& choices() const { return choices_; }
  void set_choices(const at::Tensor& choices) { choices_ = choices; }

  // Multiplies weights [samples, heads, queries, keys] in place by 0 or 1 / (1 - probability).
  void apply(const at::Tensor& weights, const ScoreBlock& block) const;

  double probability() const { return probability_; }

 private:
  double probability_ = 0;
  std::int64_t seed_ = 0;
  at::Tensor choices_ = {};  // boolean [batch, heads, seq_q, seq_kv], true if kept
};

}  // namespace telens
