// How long the ranks of a group wait for each other.
#pragma once

#include <chrono>

#include "core/distributed/process_group.h"

namespace telens {

// After it the group's collectives, or the calls of its store, give up: the shorter of the two, as
// init_process_group's or new_group's `timeout` has set them. Zero: neither has a limit, or it has
// no store.
std::chrono::milliseconds find_time_limit(const c10d::ProcessGroup& group);

// A rank waits that long for another that may be in a collective already, which is then to be left
// in time: half of the limit, five minutes at most, since a rank may load data first, or compile.
std::chrono::milliseconds find_longest_wait(const c10d::ProcessGroup& group);

// A rank that waits for others says nothing for that long: they are seldom further apart, and by
// then a person wants to know what the program waits for.
inline constexpr std::chrono::milliseconds kSilentWait = std::chrono::seconds(10);

// A rank that asks the store again and again sleeps that long between two looks: a quarter of the
// time `waited` so far, from 5 ms to half a second. A thousand ranks must not keep the store's one
// thread busy.
std::chrono::steady_clock::duration find_pause(std::chrono::steady_clock::duration waited);

}  // namespace telens
