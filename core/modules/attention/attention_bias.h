// The terms that attention adds to its scores before the softmax.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "core/modules/attention/attention_arguments.h"

namespace telens {

// ALiBi's slopes (https://arxiv.org/abs/2108.12409), FP32 [heads]: with n the largest power of two
// that is no larger than heads, 2^(-8 k / n) for k = 1 .. n, then 2^(-4 k / n) for odd k.
at::Tensor alibi_slopes(std::int64_t heads, const at::Device& device);

struct BiasContext {
  std::int64_t heads;
  double scale;          // factor of Q K^T
  at::Tensor distances;  // diagonal_distances(); of alibi alone
};

// True for "alibi". Throws UsageError for a name that is none of the four.
bool is_alibi(const std::string& bias_type);

// The bias of scaled scores, broadcast to [batch, heads, seq_q, seq_kv]; nothing for no_bias.
// Throws UsageError if a bias is missing, or given where none is taken.
std::optional<at::Tensor> attention_bias(const ScoreArguments& arguments,
                                         const BiasContext& context);

}  // namespace telens
