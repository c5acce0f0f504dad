// The learning rate, where the program records it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "analysis/facts.h"

namespace telens::analysis {

struct RateJump {
  std::string name;            // the scalar
  std::int64_t iteration = 0;  // the first one whose optimizer's step takes it
  std::int64_t previous = 0;   // the one recorded before
  double before = 0, after = 0;
  double largest = 0;       // all of them before
  bool loss_rises = false;  // within a few iterations
};

// The first time that a scalar "lr" or "learning_rate", or "<optimizer>.lr", is more than three
// times as large as ever before. Warm-up grows in smaller steps, and a schedule that begins anew
// goes where it was.
std::optional<RateJump> first_rate_jump(const Facts& facts);

}  // namespace telens::analysis
