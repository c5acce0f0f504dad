// Attention computed one block of scores at a time, forward and backward, with LibTorch's GEMMs and
// the formulas of flash attention (https://arxiv.org/abs/2307.08691): the backward recomputes the
// scores from the log-sum-exp of the softmax.
#pragma once

#include "core/modules/attention/attention_rules.h"

namespace telens {

// Returns [batch, heads, seq_q, value size]; 0 for fully masked queries. BF16 and FP16 are computed
// in FP32 and rounded once. Differentiable once in query, key, value, the bias's source and offset;
// saves those, the output and one number per query. Dropout draws one number from the CPU's default
// generator. The backward throws UsageError for a mask that was modified since the forward.
at::Tensor attend_in_blocks(const QueryKeyValueHeads& heads, const AttentionRules& rules);

}  // namespace telens
