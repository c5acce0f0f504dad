// The order in which a context-parallel group has a sequence: it is cut into 2 * ranks chunks of
// one length, of which rank r has chunk r and chunk 2 * ranks - 1 - r. Under a causal mask all
// ranks so have the same work.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "core/modules/attention/packed_sequences.h"

namespace telens {

struct ContextRank {
  std::int64_t rank = 0;
  std::int64_t size = 1;  // ranks

  std::int64_t chunks() const { return 2 * size; }
  std::int64_t first_chunk() const { return rank; }
  std::int64_t second_chunk() const { return chunks() - 1 - rank; }
};

// This rank's two chunks of a whole dimension, which the number of chunks divides.
at::Tensor own_chunks(const at::Tensor& whole, std::int64_t dim, const ContextRank& at);

// The chunks of all ranks, rank by rank, are brought into their natural order, and back.
at::Tensor to_natural_order(const at::Tensor& by_rank, std::int64_t dim, std::int64_t ranks);
at::Tensor to_rank_order(const at::Tensor& natural, std::int64_t dim, std::int64_t ranks);

// Where the places of a padded batch lie in their sequences.
struct ContextPositions {
  // int64 [batch or 1, places of the whole sequence]: 0, 1, ...; -1 where a sequence has nothing.
  at::Tensor whole;
  bool has_gaps = false;  // some of them may be -1

  at::Tensor of(const ContextRank& at) const { return own_chunks(whole, 1, at); }
  // boolean [batch, 1, 1, places of the whole sequence], True where there is nothing
  at::Tensor padding() const { return (whole < 0).unsqueeze(1).unsqueeze(1); }
};

// `length`: places of a sequence on this rank. cu_seqlens: [batch + 1], sums of the lengths of the
// whole sequences, which end where they say. Throws ShapeError naming `argument`.
ContextPositions context_positions(const char* argument, std::int64_t length, const ContextRank& at,
                                   const std::optional<at::Tensor>& cu_seqlens,
                                   const at::Device& device);

// Packed sequences (thd) of which each is divided by itself.
struct PackedContext {
  PackedSequences own;  // this rank's tokens: chunks of all sequences are padded to one length
  ContextPositions positions;
};

// cu_seqlens: of the whole sequences; padded: the same with the padding between them, by which they
// are divided. tokens: of this rank. Reads both on the host. Throws ShapeError where 2 * ranks does
// not divide a sequence or tokens are missing.
PackedContext packed_context(const char* argument, const at::Tensor& cu_seqlens,
                             const std::optional<at::Tensor>& padded, std::int64_t tokens,
                             const ContextRank& at);

// int64 [tokens], on the host: where each of this rank's packed tokens lies in its sequence,
// padding counted. Throws as packed_context.
at::Tensor packed_token_positions(const char* argument, const at::Tensor& padded,
                                  std::int64_t tokens, const ContextRank& at);

}  // namespace telens
