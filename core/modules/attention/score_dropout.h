// Dropout of attention weights, block by block: whether a weight is kept follows from a seed and
// from its place, so blocks of any size drop the same ones and nothing is kept for the backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/modules/attention/score_block.h"

namespace telens {

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
