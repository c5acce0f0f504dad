// A process group: its ranks and how long they wait for each other. Does not include c10d, whose
// header takes seconds to compile.
#pragma once

#include <algorithm>
#include <chrono>
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

// ---- how long ranks of a group wait for each other

// Returns the shorter timeout of the group's collectives and of its store, as set by the `timeout`
// of init_process_group or new_group. Returns 0 if neither has a limit or if the group has no
// store.
std::chrono::milliseconds find_time_limit(const c10d::ProcessGroup& group);

// Returns how long a rank waits for another one that may already be in a call with this time limit
// (0 for none), which must not time out: half of the limit, at most five minutes, since a rank may
// load data or compile first.
inline std::chrono::milliseconds longest_wait_within(std::chrono::milliseconds limit) {
  constexpr std::chrono::milliseconds kMostPatience = std::chrono::minutes(5);
  const bool is_limited = limit != std::chrono::milliseconds::zero();
  return is_limited ? std::min(limit / 2, kMostPatience) : kMostPatience;
}

// Like longest_wait_within(), for the collectives of the group and the calls of its store.
std::chrono::milliseconds find_longest_wait(const c10d::ProcessGroup& group);

// A rank waits this long without a message. Ranks are rarely further apart, and after that the user
// should be informed of the wait.
inline constexpr std::chrono::milliseconds kSilentWait = std::chrono::seconds(10);

// Returns the pause between two polls of the store: a quarter of the time `waited` so far, from 5
// ms to half a second. A thousand ranks must not overload the store's single thread.
inline std::chrono::steady_clock::duration find_pause(std::chrono::steady_clock::duration waited) {
  constexpr std::chrono::milliseconds kShortPause{5};
  constexpr std::chrono::milliseconds kLongPause{500};
  return std::clamp<std::chrono::steady_clock::duration>(waited / 4, kShortPause, kLongPause);
}

}  // namespace telens
