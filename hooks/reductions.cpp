#include "hooks/reductions.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace telens {

std::string get_name(const debug::ReductionGroup& group) {
  if (!has_several_ranks(group)) return "";
  return group->getGroupDesc().empty() ? group->getGroupName() : group->getGroupDesc();
}

std::string get_id(const c10d::ProcessGroup& group) { return group.getGroupName(); }

bool has_several_ranks(const debug::ReductionGroup& group) {
  return group != nullptr && group->getSize() > 1;
}

debug::ReductionGroup share(c10d::ProcessGroup* group) {
  if (group == nullptr) return nullptr;
  auto counted = c10::intrusive_ptr<c10d::ProcessGroup>::unsafe_reclaim_from_nonowning(group);
  return {group, [counted](c10d::ProcessGroup*) mutable { counted.reset(); }};
}

}  // namespace telens
