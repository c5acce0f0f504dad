// Attention without FP8: by LibTorch's kernels or, if these would require too much memory, one
// block of scores at a time.
#pragma once

#include <functional>

#include "core/modules/attention/attention_scores.h"

namespace telens {

// Returns true if LibTorch's kernels would hold more than block_limits().most_whole scores or mask
// elements in CPU memory at one time, and for rules with a user function, which they do not
// support. Sets rules.choice then. Throws UsageError if no enabled kernel supports the attention.
bool runs_in_blocks(const QueryKeyValueHeads& heads, const AttentionRules& rules);

// Returns [batch, heads, seq_q, value size]; 0 for fully masked queries. With `checkpoint` the
// backward recomputes the attention to the same bits and saves no intermediates.
at::Tensor attend_ruled(const QueryKeyValueHeads& heads, const AttentionRules& rules,
                        bool checkpoint);

// Like attend_ruled(), but with the values of `forward`, which is called first and builds no graph.
at::Tensor attend_as(const std::function<at::Tensor()>& forward, const QueryKeyValueHeads& heads,
                     const AttentionRules& rules);

}  // namespace telens
