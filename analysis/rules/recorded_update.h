// The size of the optimizer's steps, where debug.watch_optimizer records it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "analysis/facts.h"

namespace telens::analysis {

struct UpdateJump {
  std::string update;  // names of the scalars
  std::string rate;
  std::int64_t iteration = 0;
  std::int64_t previous = 0;
  double before = 0, after = 0;  // norm of a step divided by the norm of the weights
  double rate_before = 0, rate_after = 0;
};

// Returns the first step that is at least twice as large as usual for its learning rate: an
// optimizer that lost its state repeats its first steps. Larger steps of weights that were frozen
// before are not a jump.
std::optional<UpdateJump> first_update_jump(const Facts& facts);

}  // namespace telens::analysis
