// The softmax of an attention over FP8 codes, a block of scores at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/modules/attention/attention_rules.h"
#include "core/modules/attention/fp8_operands.h"

namespace telens {

struct SoftmaxBlock {
  at::Tensor weights;  // [samples, heads, queries, keys]; 0 where a query sees no key
  at::Tensor sink;     // [samples, heads, queries, 1], the sink's weight; undefined: there is none
};

// FP32. Dropout is the caller's. Keeps the newest result for the same block.
class Fp8Softmax {
 public:
  Fp8Softmax(const CodedHeads& heads, const AttentionRules& rules);

  const SoftmaxBlock& of(const ScoreBlock& block);

 private:
  const CodedHeads& heads_;
  const AttentionRules& rules_;
  RuledScores ruled_;
  at::Tensor factor_;  // that of the products
  at::Tensor sink_;    // undefined: there is none
  ScoreBlock kept_{};
  SoftmaxBlock newest_;
};

}  // namespace telens
