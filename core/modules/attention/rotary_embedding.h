// Rotary position embedding (https://arxiv.org/abs/2104.09864).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "core/base/error.h"

namespace telens {

// Angles [max_seq_len, 1, 1, dim], FP32: position * base^(-2i / dim), each frequency twice, as
// Transformer Engine's RotaryPositionEmbedding gives them.
TELENS_EXPORT at::Tensor rotary_angles(std::int64_t max_seq_len, std::int64_t dim,
                                       double base = 10000.0);

// How channels are paired: the first half with the second, or neighbors.
enum class RotaryPairs : std::uint8_t { halves, neighbors };

// Rotates the first angles.size(-1) channels of t [seq, batch, head, channels] (batch_dim 1) or
// [batch, seq, head, channels] (batch_dim 0). angles: [at least seq, 1 or batch, 1, channels].
// They follow t's device. Arithmetic in FP32 (FP64 for FP64), result in t's dtype.
TELENS_EXPORT at::Tensor apply_rotary_embedding(const at::Tensor& t, const at::Tensor& angles,
                                                std::int64_t batch_dim,
                                                RotaryPairs pairs = RotaryPairs::halves);

// The same for packed sequences t [tokens, head, channels]: each token has the angles of its place
// in its sequence. cu_seqlens: int32 or int64 [batch + 1], 0 and the sums of the lengths; starts:
// the same with gaps between the sequences, whose tokens get any angles. Sequences that are longer
// than the angles reach are a ShapeError where cu_seqlens lies on the CPU; elsewhere they get the
// last position's.
TELENS_EXPORT at::Tensor apply_rotary_embedding_packed(const at::Tensor& t,
                                                       const at::Tensor& angles,
                                                       const at::Tensor& cu_seqlens,
                                                       const std::optional<at::Tensor>& starts,
                                                       RotaryPairs pairs);

}  // namespace telens
