// Process groups of torch.distributed as groups of ranks that exchange bytes.
#pragma once

#include "hooks/rank_group.h"

namespace telens {

// Shares the ownership of a group with another owner; returns null for null.
TELENS_EXPORT RankGroupPtr to_rank_group(c10d::ProcessGroup* group);
// Returns null if the group does not come from to_rank_group(). The group keeps the ownership.
TELENS_EXPORT c10d::ProcessGroup* find_process_group(const RankGroupPtr& group);

}  // namespace telens
