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

// Two levels: ranks of `heads` exchange heads for whole parts of the sequence (all-to-all); between
// those of `sequence` keys and values travel, round a ring or gathered. A group of one rank is
// none.
struct ContextParallel {
  ProcessGroupPtr heads;
  ProcessGroupPtr sequence;
  bool gathers = false;   // keys and values of all ranks at one time, not round a ring
  std::int64_t lost = 0;  // ranks of the group that a pickle of the module had

  bool is_divided() const { return heads || sequence; }
  // Keys and values travel round a ring.
  bool is_ring() const { return sequence && !gathers; }
  // Both groups together: heads' ranks are neighbors.
  TELENS_EXPORT ContextRank place() const;
  // In `sequence` alone.
  ContextRank sequence_place() const;
};

// One group, or for a2a+p2p two: that of a2a and that of p2p; none: nothing is divided. comm_type:
// p2p, all_gather, a2a or a2a+p2p. Throws UsageError for anything else.
TELENS_EXPORT ContextParallel context_parallel(const std::vector<ProcessGroupPtr>& groups,
                                               const std::string& comm_type);

}  // namespace telens
