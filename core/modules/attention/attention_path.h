// The way that an attention without FP8 goes: by LibTorch's kernels, or a block of scores at a
// time.
#pragma once

#include <functional>

#include "core/modules/attention/attention_rules.h"

namespace telens {

// True where LibTorch's kernels would have more than block_limits().most_whole scores, or elements
// of a mask, in memory on a CPU at one time, and for rules with a change, which they do not take.
// Fills rules.choice then. Throws UsageError where the kernels that are switched on take none of
// it.
bool runs_in_blocks(const QueryKeyValueHeads& heads, const AttentionRules& rules);

// [batch, heads, seq_q, value size]; 0 for queries that see nothing. With `checkpoint` the backward
// runs it anew, to the same bits, and nothing inside is kept.
at::Tensor attend_ruled(const QueryKeyValueHeads& heads, const AttentionRules& rules,
                        bool checkpoint);

// attend_ruled whose values are those of `forward`, which is called first and makes no graph.
at::Tensor attend_as(const std::function<at::Tensor()>& forward, const QueryKeyValueHeads& heads,
                     const AttentionRules& rules);

}  // namespace telens
