// Detects jumps of the recorded learning rate.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "analysis/facts.h"

namespace telens::analysis {

// Returns true if a scalar is a learning rate: "lr" or "learning_rate", optionally after the name
// of an optimizer and a dot, as debug.watch_optimizer(name="...") records them.
bool is_rate(std::string_view name);

struct RateJump {
  std::string name;            // the scalar
  std::int64_t iteration = 0;  // first step with the new rate
  std::int64_t previous = 0;   // last recorded iteration before
  double before = 0, after = 0;
  double largest = 0;       // largest earlier rate
  bool loss_rises = false;  // within 8 iterations after the jump
};

// Returns the first time that a scalar "lr", "learning_rate" or "<optimizer>.lr" exceeds three
// times its earlier maximum. Warm-up grows in smaller steps, and a restarted schedule returns to
// earlier values.
std::optional<RateJump> first_rate_jump(const Facts& facts);

}  // namespace telens::analysis
