// The softmax of an attention over FP8 codes, a block of scores at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/modules/attention/attention_rules.h"
#include "core/modules/attention/fp8_operands.h"

namespace telens {

struct SoftmaxBlock {
  at::Tensor weights;  // [samples, heads, queries, keys]; 0 if fully masked
  at::Tensor sink;     // [samples, heads, queries, 1]; undefined without a sink
};

// Returns the softmax in FP32, without dropout. Caches the result of the last block.
class Fp8Softmax {
 public:
  Fp8Softmax(const CodedHeads& heads, const AttentionRules& rules);

  const SoftmaxBlock& of(const ScoreBlock& block);

 private:
  const CodedHeads& heads_;
  const AttentionRules& rules_;
  RuledScores ruled_;
  at::Tensor factor_;  // of the GEMM
  at::Tensor sink_;    // undefined without a sink
  ScoreBlock kept_{};
  SoftmaxBlock newest_;
};

}  // namespace telens
