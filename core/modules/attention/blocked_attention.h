// Attention a block of scores at a time, forward and backward, by LibTorch's products and the
// formulas of flash attention (https://arxiv.org/abs/2307.08691): the backward makes the scores
// anew from the logarithm of their softmax's sum.
#pragma once

#include "core/modules/attention/attention_rules.h"

namespace telens {

// [batch, heads, seq_q, value size]; 0 for queries that see nothing. BF16 and FP16 are computed in
// FP32 and rounded once. Differentiable once, in query, key, value, the bias's source and offset;
// keeps those, the output and one number a query. Where rules have dropout, the default generator
// of the CPU is asked for one number. Throws UsageError in the backward for a mask that was changed
// since.
at::Tensor attend_in_blocks(const QueryKeyValueHeads& heads, const AttentionRules& rules);

}  // namespace telens
