// How an attention is divided among the ranks that have parts of its sequences, by Transformer
// Engine's names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/distributed/process_group.h"
#include "core/modules/attention/context_order.h"

namespace telens {

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
