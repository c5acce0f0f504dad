#include "hooks/stable_abi/process_group.h"

#include "core/base/error.h"
#include "core/distributed/collectives.h"
#include "core/distributed/process_group.h"
#include "hooks/libtorch/c10d_group.h"
#include "hooks/rank_checker.h"

namespace telens {

ProcessGroupPtr share(c10d::ProcessGroup* group) {
  return group == nullptr ? nullptr : group->shared_from_this();
}
std::int64_t size_of(const c10d::ProcessGroup& group) { return group.ranks()->size(); }
std::int64_t rank_in(const c10d::ProcessGroup& group) { return group.ranks()->rank(); }

RankGroupPtr to_rank_group(c10d::ProcessGroup* group) {
  return group == nullptr ? nullptr : group->ranks();
}

namespace debug {

ReductionGroup::ReductionGroup(const std::shared_ptr<c10d::ProcessGroup>& group)
    : RankGroupPtr(to_rank_group(group.get())) {}

}  // namespace debug

// ---- collectives of parallel layers, which are part of the module core

struct CollectiveObservation::Watch {};
CollectiveObservation::CollectiveObservation(std::shared_ptr<CollectiveObserver>) {}
CollectiveObservation::~CollectiveObservation() = default;
void CollectiveObservation::end() {}

// ---- amax reductions: only quantizers of the module core have a group

void AmaxReduction::add(at::Tensor, const ProcessGroupPtr&) {
  raise<InternalError>("an amax is reduced over ranks without the module core");
}
void AmaxReduction::run() {}

}  // namespace telens
