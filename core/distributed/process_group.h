// A process group, without including c10d (its header takes seconds to compile).
#pragma once

#include <cstdint>
#include <memory>

#include "core/base/error.h"

namespace c10d {
class ProcessGroup;
}

namespace telens {

// Shares ownership of the intrusive pointer that it was created from.
using ProcessGroupPtr = std::shared_ptr<c10d::ProcessGroup>;

// Shares the ownership of a group with another owner; returns null for null.
TELENS_EXPORT ProcessGroupPtr share(c10d::ProcessGroup* group);

// Returns the number of ranks.
TELENS_EXPORT std::int64_t size_of(const c10d::ProcessGroup& group);
// Returns this process's rank, from 0.
TELENS_EXPORT std::int64_t rank_in(const c10d::ProcessGroup& group);

}  // namespace telens
