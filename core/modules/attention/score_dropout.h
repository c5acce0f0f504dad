// Dropout of attention weights, block by block: whether a weight is kept follows from a seed and
// from its place, so blocks of any size drop the same ones and nothing is kept for the backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/modules/attention/score_block.h"

namespace telens {

class ScoreDropout {
 public:
  ScoreDropout() = default;  // drops nothing

  // Takes one number of the CPU's default generator, whatever the sizes are.
  static ScoreDropout seeded(double probability);
  // Every weight's choice at once, from the default generator of query's device, where a device has
  // no kernel for the choices of a seed.
  static ScoreDropout drawn(const ScoreShape& shape, const at::Tensor& query, double probability);

  // The second choices, where they are a tensor; undefined elsewhere.
  const at::Tensor& choices() const { return choices_; }
  void set_choices(const at::Tensor& choices) { choices_ = choices; }

  // Multiplies weights [samples, heads, queries, keys] in place: by 0, or by 1 / (1 - probability).
  void apply(const at::Tensor& weights, const ScoreBlock& block) const;

  double probability() const { return probability_; }

 private:
  double probability_ = 0;
  std::int64_t seed_ = 0;
  at::Tensor choices_ = {};  // boolean [batch, heads, seq_q, seq_kv], True where a weight is kept
};

}  // namespace telens
