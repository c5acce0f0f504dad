// How an attention is divided among the ranks of context-parallel groups, by Transformer Engine's
// names.
//
// The sequence is divided into 2 * ranks equal chunks. Rank r has chunk r and chunk 2 * ranks - 1 -
// r, which gives all ranks the same work under a causal mask.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/distributed/process_group.h"
#include "core/modules/attention/packed_sequences.h"

namespace telens {

struct ContextRank {
  std::int64_t rank = 0;
  std::int64_t size = 1;  // ranks

  std::int64_t chunks() const { return 2 * size; }
  std::int64_t first_chunk() const { return rank; }
  std::int64_t second_chunk() const { return chunks() - 1 - rank; }
};

// Selects this rank's two chunks of a dimension that is divisible by the number of chunks.
at::Tensor own_chunks(const at::Tensor& whole, std::int64_t dim, const ContextRank& at);

// Reorder chunks from rank order to natural order, and back.
at::Tensor to_natural_order(const at::Tensor& by_rank, std::int64_t dim, std::int64_t ranks);
at::Tensor to_rank_order(const at::Tensor& natural, std::int64_t dim, std::int64_t ranks);

// Positions of a padded batch in their sequences.
struct ContextPositions {
  // int64 [batch or 1, positions of the whole sequence]: 0, 1, ...; -1 for padding.
  at::Tensor whole;
  bool has_gaps = false;  // may contain -1

  at::Tensor of(const ContextRank& at) const { return own_chunks(whole, 1, at); }
  // boolean [batch, 1, 1, positions of the whole sequence], true for padding
  at::Tensor padding() const { return (whole < 0).unsqueeze(1).unsqueeze(1); }
};

// `length`: positions of a sequence on this rank. cu_seqlens: [batch + 1], cumulative lengths of
// the whole sequences. Throws ShapeError naming `argument`.
ContextPositions context_positions(const char* argument, std::int64_t length, const ContextRank& at,
                                   const std::optional<at::Tensor>& cu_seqlens,
                                   const at::Device& device);

// Packed sequences (thd), each divided separately.
struct PackedContext {
  PackedSequences own;  // this rank's tokens, chunks padded to one length
  ContextPositions positions;
};

// cu_seqlens: of the whole sequences; padded: including the padding between sequences, by which
// they are divided. tokens: of this rank. Reads both on the host. Throws ShapeError if 2 * ranks
// does not divide a sequence or if tokens are missing.
PackedContext packed_context(const char* argument, const at::Tensor& cu_seqlens,
                             const std::optional<at::Tensor>& padded, std::int64_t tokens,
                             const ContextRank& at);

// Returns the positions of this rank's packed tokens in their sequences, counting padding: int64
// [tokens] on the host. Throws like packed_context.
at::Tensor packed_token_positions(const char* argument, const at::Tensor& padded,
                                  std::int64_t tokens, const ContextRank& at);

// ---- masks by positions

struct SeenSpan {
  bool causal = false;
  std::int64_t left = -1;  // visible distance before a query; -1 if unlimited
  std::int64_t right = -1;
};

// Computes the mask from positions. query: int64 [batch or 1, seq_q], key: [batch or 1, seq_kv], -1
// for padding -> boolean [batch or 1, 1, seq_q, seq_kv].
at::Tensor allowed_keys(const at::Tensor& query, const at::Tensor& key, const SeenSpan& span);

// ---- the groups

// Two levels, named as in Transformer Engine: ranks of `heads` exchange heads for whole parts of
// the sequence (all-to-all); between ranks of `sequence`, keys and values travel in a ring or are
// gathered. A single-rank group is not used.
struct ContextParallel {
  ProcessGroupPtr heads;
  ProcessGroupPtr sequence;
  bool gathers = false;   // gather keys and values instead of a ring
  std::int64_t lost = 0;  // size of the group in a pickle of the module

  bool is_divided() const { return heads || sequence; }
  // True if keys and values travel in a ring.
  bool is_ring() const { return sequence && !gathers; }
  // Over both groups: ranks of `heads` are neighbors.
  TELENS_EXPORT ContextRank place() const;
  // Over `sequence` only.
  ContextRank sequence_place() const;
};

// groups: none, one, or for a2a+p2p two (a2a, p2p). comm_type: p2p, all_gather, a2a or a2a+p2p.
// Throws UsageError for anything else.
TELENS_EXPORT ContextParallel context_parallel(const std::vector<ProcessGroupPtr>& groups,
                                               const std::string& comm_type);

}  // namespace telens
