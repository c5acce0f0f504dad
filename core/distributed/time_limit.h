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

}  // namespace telens
