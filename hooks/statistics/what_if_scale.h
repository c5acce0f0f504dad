// The scales that a per-tensor FP8 recipe would have had, from the amaxes that were seen. No
// LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "core/formats/format_id.h"

namespace telens {

// Where the amax of a scale comes from.
enum class AmaxSource : std::uint8_t {
  current,      // the tensor itself: current scaling
  most_recent,  // the iteration before: delayed scaling
  max,          // the largest of the iterations before: delayed scaling
};

struct WhatIfRecipe {
  AmaxSource amax = AmaxSource::current;
  std::size_t history = 1024;  // how many earlier iterations `max` takes; at least 1
  int margin = 0;              // the scale is divided by 2^margin
  bool power_of_two = false;
};

// The formulas are those of the recipes: core/ops/scale_formula.h. Delayed scaling begins with
// the scale 1, and its "iteration before" is the one that was fed before.
class WhatIfScale {
 public:
  WhatIfScale(const WhatIfRecipe& recipe, FormatId fp8_format);

  // In the order of iterations: the scale with which a tensor of this amax is cast.
  float next(float amax);

 private:
  float largest_of_history() const;

  WhatIfRecipe recipe_;
  float fp8_max_;
  float scale_ = 1;            // for the next tensor, under delayed scaling
  std::deque<float> history_;  // newest in front
};

}  // namespace telens
