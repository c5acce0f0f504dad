#include "hooks/statistics/what_if_scale.h"

#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/formats/dispatch.h"
#include "core/ops/scale_formula.h"

namespace telens {

WhatIfScale::WhatIfScale(const WhatIfRecipe& recipe, FormatId fp8_format)
    : recipe_(recipe),
      fp8_max_(dispatch_fp8_format(fp8_format, "what-if scale",
                                   []<typename Format>() { return Format::kMax; })) {
  if (recipe.history < 1) raise<UsageError>("the amax history is empty; expected at least 1");
}

// A NaN in the window is the largest value; the amax is then not finite, and the scale is kept.
float WhatIfScale::largest_of_history() const {
  float largest = 0;
  for (const float amax : history_) largest = largest < amax || std::isnan(amax) ? amax : largest;
  return largest;
}

float WhatIfScale::next(float amax) {
  if (recipe_.amax == AmaxSource::current) {
    constexpr float kNoEpsilon = 0;
    const float scale = current_scale(amax, fp8_max_, kNoEpsilon, recipe_.power_of_two);
    const float with_margin = std::ldexp(scale, -recipe_.margin);
    return std::isinf(with_margin) ? std::numeric_limits<float>::max() : with_margin;
  }
  const float scale = scale_;
  history_.push_front(amax);
  const std::size_t length = recipe_.amax == AmaxSource::most_recent ? 1 : recipe_.history;
  if (history_.size() > length) history_.pop_back();
  scale_ =
      delayed_scale(largest_of_history(), scale_, fp8_max_, recipe_.margin, recipe_.power_of_two);
  return scale;
}

}  // namespace telens
