#include "core/distributed/time_limit.h"

#include <algorithm>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace telens {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kMostPatience = std::chrono::minutes(5);
constexpr milliseconds kShortPause{5};
constexpr milliseconds kLongPause{500};

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
  const milliseconds limit = find_time_limit(group);
  return limit == milliseconds::zero() ? kMostPatience : std::min(limit / 2, kMostPatience);
}

std::chrono::steady_clock::duration find_pause(std::chrono::steady_clock::duration waited) {
  return std::clamp<std::chrono::steady_clock::duration>(waited / 4, kShortPause, kLongPause);
}

}  // namespace telens
