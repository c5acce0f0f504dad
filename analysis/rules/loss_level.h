// A loss that rises to another level, by a jump or step by step, and stays there.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "analysis/series.h"

namespace telens::analysis {

struct LossRise {
  std::int64_t first = 0;  // iteration
  double before = 0;       // median of 8 losses
  double after = 0;        // median of the next 8
  double largest_before = 0;
  double smallest_after = 0;
};

// The first time that 8 losses in a row are larger than each of the 8 before, by a fifth in the
// median. A training at a high learning rate goes up for a few steps at a time.
std::optional<LossRise> first_rise_that_stays(const std::vector<Point>& losses);

}  // namespace telens::analysis
