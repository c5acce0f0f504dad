#include "hooks/statistics/scale_sums.h"

#include <algorithm>
#include <cmath>

#include "hooks/statistics/catalogue.h"

namespace telens {
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

}  // namespace telens
