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
  double before = 0, after = 0;  // norm of a step over that of the weights
  double rate_before = 0, rate_after = 0;
};

// The first time that a step is twice as large as usual and more, for its learning rate: an
// optimizer that has lost its state makes its first steps anew. Weights that were frozen before,
// and are trained from here on, make larger steps too, and are no jump.
std::optional<UpdateJump> first_update_jump(const Facts& facts);

}  // namespace telens::analysis
