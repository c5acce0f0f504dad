#include "core/distributed/process_group.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>

namespace telens {

ProcessGroupPtr share(c10d::ProcessGroup* group) {
  if (group == nullptr) return nullptr;
  auto counted = c10::intrusive_ptr<c10d::ProcessGroup>::unsafe_reclaim_from_nonowning(group);
  return {group, [counted](c10d::ProcessGroup*) mutable { counted.reset(); }};
}

std::int64_t size_of(const c10d::ProcessGroup& group) { return group.getSize(); }

std::int64_t rank_in(const c10d::ProcessGroup& group) { return group.getRank(); }

// ---- how long ranks wait

namespace {

using std::chrono::milliseconds;

// Returns zero if the backend does not report it.
milliseconds find_limit_of_collectives(const c10d::ProcessGroup& group) {
  try {
    return group.getDefaultBackend()->getBackendOptions()->timeout;
  } catch (const c10::Error&) {
    return milliseconds::zero();
  }
}

}  // namespace

milliseconds find_time_limit(const c10d::ProcessGroup& group) {
  const auto store = group.getStore();
  const milliseconds calls = store ? store->getTimeout() : milliseconds::zero();
  const milliseconds collectives = find_limit_of_collectives(group);
  // kNoTimeout is zero.
  if (calls == c10d::Store::kNoTimeout || collectives == c10d::Store::kNoTimeout) {
    return std::max(calls, collectives);
  }
  return std::min(calls, collectives);
}

milliseconds find_longest_wait(const c10d::ProcessGroup& group) {
  return longest_wait_within(find_time_limit(group));
}

}  // namespace telens
