#include "core/distributed/time_limit.h"

#include <algorithm>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace telens {
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
