// The clock with which a session measures its own cost.
#pragma once

#include "core/base/error.h"

namespace telens {

// Returns the seconds since an arbitrary epoch; monotonic.
TELENS_EXPORT double seconds_now();

// For tests: replaces the clock; nullptr restores the real one.
using Clock = double (*)();
TELENS_EXPORT void set_clock(Clock clock);

}  // namespace telens
