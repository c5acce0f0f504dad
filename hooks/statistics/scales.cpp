#include "hooks/statistics/scales.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/formats/dispatch.h"
#include "core/ops/scale_formula.h"
#include "hooks/statistics/catalogue.h"

namespace telens {

// ---- the fit of a scale

namespace {

void add_fit(const ScaleRead& read, ScaleSums& sums) {
  const double tensor_amax = amax(read.tensor);
  if (tensor_amax == 0) return;
  const double headroom = std::log2(read.origin.largest * read.cast.scale_inv_min / tensor_amax);
  ++sums.fits;
  sums.headroom = smaller(sums.headroom, headroom);
  sums.staleness = larger(sums.staleness, static_cast<double>(read.origin.margin) - headroom);
}

void add_jump(double jump, ScaleSums& sums) {
  ++sums.jumps;
  const double known = std::abs(sums.jump);
  const bool is_larger = std::abs(jump) > known || (std::abs(jump) == known && jump > 0);
  if (is_larger || std::isnan(jump)) sums.jump = jump;
}

}  // namespace

void merge(ScaleSums& into, const ScaleSums& part) {
  into.elements += part.elements;
  into.clipped += part.clipped;
  into.fits += part.fits;
  into.staleness = larger(into.staleness, part.staleness);
  into.headroom = smaller(into.headroom, part.headroom);
  if (part.jumps > 0) add_jump(part.jump, into);
  into.jumps += std::max<std::int64_t>(part.jumps - 1, 0);
  into.ages += part.ages;
  into.age = std::max(into.age, part.age);
}

ScaleSums ScaleMemory::add(std::int64_t iteration, std::span<const ScaleRead> reads) {
  ScaleSums sums;
  const std::optional<Last> before = last_;
  Last last = before.value_or(Last{});
  bool updated = !before.has_value();
  for (const ScaleRead& read : reads) {
    if (read.tensor.numel == 0) continue;
    sums.elements += read.cast.numel;
    sums.clipped += read.cast.saturated - read.tensor.posinf - read.tensor.neginf;
    add_fit(read, sums);
    if (before) add_jump(std::log2(before->scale_inv / read.cast.scale_inv_min), sums);
    updated |= !read.origin.updates || *read.origin.updates != last.updates;
    last.updates = read.origin.updates.value_or(0);
    last.scale_inv = read.cast.scale_inv_min;
  }
  if (sums.elements == 0) return sums;
  if (updated) last.updated = iteration;
  sums.ages = 1;
  sums.age = iteration - last.updated;
  last_ = last;
  return sums;
}

// ---- the scales of other recipes

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
