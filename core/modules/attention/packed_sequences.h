// Packed sequences (thd), concatenated without a batch dimension, and padding masks from their
// lengths.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "core/base/error.h"

namespace telens {

// Maps the positions of a padded batch to packed tokens.
struct PackedSequences {
  at::Tensor places;   // int32 [batch * longest, 1]: token index; -1 for padding
  at::Tensor padding;  // boolean [batch, 1, 1, longest], true for padding
  std::int64_t batch;
  std::int64_t longest;
};

// Throws ShapeError naming `argument` unless it is an integer tensor [batch + 1].
void check_cu_seqlens(const char* argument, const at::Tensor& cu_seqlens);

// cu_seqlens: [batch + 1], cumulative lengths from 0. starts: including the gaps between sequences.
// longest: read from the device if not given. tokens: their number. Throws ShapeError naming
// `argument`; detects decreasing or too large lengths if they are on the CPU or were read from the
// device.
PackedSequences packed_sequences(const char* argument, const at::Tensor& cu_seqlens,
                                 const std::optional<at::Tensor>& starts,
                                 std::optional<std::int64_t> longest, std::int64_t tokens);

// [tokens, heads, size] -> [batch, longest, heads, size], padding 0.
at::Tensor unpack_sequences(const at::Tensor& tokens, const PackedSequences& sequences);
// [batch, longest, width] -> [tokens, width]; tokens of no sequence are 0.
at::Tensor pack_sequences(const at::Tensor& padded, const PackedSequences& sequences,
                          std::int64_t tokens);

// boolean [batch, 1, 1, length], true after each sequence's end.
at::Tensor padding_mask(const char* argument, const at::Tensor& cu_seqlens, std::int64_t length);

}  // namespace telens
