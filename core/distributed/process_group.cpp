#include "core/distributed/process_group.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace telens {

std::int64_t size_of(const c10d::ProcessGroup& group) { return group.getSize(); }

std::int64_t rank_in(const c10d::ProcessGroup& group) { return group.getRank(); }

}  // namespace telens
