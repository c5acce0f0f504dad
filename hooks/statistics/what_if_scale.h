// The scales that a per-tensor FP8 recipe would have used, computed from observed amaxes. No
// LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "core/formats/format_id.h"

namespace telens {

// The origin of the amax of a scale.
enum class AmaxSource : std::uint8_t {
  current,      // the tensor itself: current scaling
  most_recent,  // the previous iteration: delayed scaling
  max,          // the largest of the previous iterations: delayed scaling
};

struct WhatIfRecipe {
  AmaxSource amax = AmaxSource::current;
  std::size_t history = 1024;  // number of previous iterations for `max`; at least 1
  int margin = 0;              // the scale is divided by 2^margin
  bool power_of_two = false;
};

// Uses the recipes' formulas: core/ops/scale_formula.h. Delayed scaling begins with scale 1. Its
// previous iteration is the previous call of next().
class WhatIfScale {
 public:
  WhatIfScale(const WhatIfRecipe& recipe, FormatId fp8_format);

  // Returns the scale for casting a tensor with this amax. Call in iteration order.
  float next(float amax);

 private:
  float largest_of_history() const;

  WhatIfRecipe recipe_;
  float fp8_max_;
  float scale_ = 1;            // for the next tensor, with delayed scaling
  std::deque<float> history_;  // newest first
};

}  // namespace telens
