// Sequences that lie one behind the other (thd), and padding masks from their lengths.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "core/base/error.h"

namespace telens {

// Where the positions of a padded batch lie among packed tokens.
struct PackedSequences {
  at::Tensor places;   // int32 [batch * longest, 1]: the token; -1 for padding
  at::Tensor padding;  // boolean [batch, 1, 1, longest], True for padding
  std::int64_t batch;
  std::int64_t longest;
};

// Throws ShapeError naming `argument` for anything but integers [batch + 1].
void check_cu_seqlens(const char* argument, const at::Tensor& cu_seqlens);

// cu_seqlens: [batch + 1], 0 and the sums of the lengths. starts: the same with the gaps between
// sequences. longest: without it the device is asked. tokens: how many there are. Throws ShapeError
// naming `argument`; sums that decrease or go past the tokens are seen where they lie on the CPU or
// the device is asked.
PackedSequences packed_sequences(const char* argument, const at::Tensor& cu_seqlens,
                                 const std::optional<at::Tensor>& starts,
                                 std::optional<std::int64_t> longest, std::int64_t tokens);

// [tokens, heads, size] -> [batch, longest, heads, size], padding 0.
at::Tensor unpack_sequences(const at::Tensor& tokens, const PackedSequences& sequences);
// [batch, longest, width] -> [tokens, width]; tokens of no sequence are 0.
at::Tensor pack_sequences(const at::Tensor& padded, const PackedSequences& sequences,
                          std::int64_t tokens);

// boolean [batch, 1, 1, length], True behind each sequence's end.
at::Tensor padding_mask(const char* argument, const at::Tensor& cu_seqlens, std::int64_t length);

}  // namespace telens
