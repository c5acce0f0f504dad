// The running iteration, decoded from the tick of the hook points.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/layer_hooks.h"

namespace telens {

// Returns 0 without a session.
inline std::int64_t running_iteration() {
  const std::uint64_t tick = hook_points::current_tick.load(std::memory_order_relaxed);
  return static_cast<std::int64_t>(tick & hook_points::kLastIteration);
}

}  // namespace telens
