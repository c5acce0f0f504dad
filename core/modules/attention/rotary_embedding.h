// Rotary position embedding (https://arxiv.org/abs/2104.09864).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "core/base/error.h"

namespace telens {

// Returns angles [max_seq_len, 1, 1, dim], FP32: position * base^(-2i / dim), each frequency twice,
// like Transformer Engine's RotaryPositionEmbedding.
TELENS_EXPORT at::Tensor rotary_angles(std::int64_t max_seq_len, std::int64_t dim,
                                       double base = 10000.0);

// The pairing of channels: first half with second half, or neighbors.
enum class RotaryPairs : std::uint8_t { halves, neighbors };

// Rotates the first angles.size(-1) channels of t: [seq, batch, head, channels] (batch_dim 1) or
// [batch, seq, head, channels] (batch_dim 0). angles: [at least seq, 1 or batch, 1, channels], on
// any device. Computes in FP32 (FP64 for FP64); returns t's dtype.
TELENS_EXPORT at::Tensor apply_rotary_embedding(const at::Tensor& t, const at::Tensor& angles,
                                                std::int64_t batch_dim,
                                                RotaryPairs pairs = RotaryPairs::halves);

// Rotates packed sequences t [tokens, head, channels] by the position in each sequence. cu_seqlens:
// int32 or int64 [batch + 1], cumulative lengths; starts: including gaps between the sequences,
// whose tokens get arbitrary angles. Throws ShapeError for sequences longer than the angles if
// cu_seqlens is on the CPU; elsewhere uses the last position.
TELENS_EXPORT at::Tensor apply_rotary_embedding_packed(const at::Tensor& t,
                                                       const at::Tensor& angles,
                                                       const at::Tensor& cu_seqlens,
                                                       const std::optional<at::Tensor>& starts,
                                                       RotaryPairs pairs);

}  // namespace telens
