#include "core/distributed/process_group.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace telens {

ProcessGroupPtr share(c10d::ProcessGroup* group) {
  if (group == nullptr) return nullptr;
  auto counted = c10::intrusive_ptr<c10d::ProcessGroup>::unsafe_reclaim_from_nonowning(group);
  return {group, [counted](c10d::ProcessGroup*) mutable { counted.reset(); }};
}

std::int64_t size_of(const c10d::ProcessGroup& group) { return group.getSize(); }

std::int64_t rank_in(const c10d::ProcessGroup& group) { return group.getRank(); }

}  // namespace telens
