// Detects jumps of the learning rate, if the program records it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "analysis/facts.h"

namespace telens::analysis {

// Returns true if a scalar is a learning rate: "lr", "learning_rate", or either after the name of
// an optimizer and a dot, as debug.watch_optimizer(name="...") records them.
bool is_rate(std::string_view name);

struct RateJump {
  std::string name;            // the scalar
  std::int64_t iteration = 0;  // the first one whose optimizer's step takes it
  std::int64_t previous = 0;   // the one recorded before
  double before = 0, after = 0;
  double largest = 0;       // all of them before
  bool loss_rises = false;  // within a few iterations
};

// Returns the first time that a scalar "lr", "learning_rate" or "<optimizer>.lr" exceeds three
// times its earlier maximum. Warm-up grows in smaller steps, and a restarted schedule returns to
// earlier values.
std::optional<RateJump> first_rate_jump(const Facts& facts);

}  // namespace telens::analysis
