// A clock for what a session measures of itself.
#pragma once

#include "core/base/error.h"

namespace telens {

// Seconds since some moment; never goes back.
TELENS_EXPORT double seconds_now();

// For tests: another clock in its place; nullptr: the real one again.
using Clock = double (*)();
TELENS_EXPORT void set_clock(Clock clock);

}  // namespace telens
