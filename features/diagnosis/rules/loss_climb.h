// A loss that climbs step by step, of which no single step is a jump.
#pragma once

#include <optional>
#include <vector>

#include "features/diagnosis/series.h"

namespace telens::diagnosis {

struct LossClimb {
  Point low;      // the lowest loss before
  Point begin;    // the first one above what was usual around it
  Point reached;  // the first one above all before the climb
};

// The loss had fallen, and goes above all heights that it had, those of the untrained model
// included, by a tenth, and stays there for 5 steps.
std::optional<LossClimb> first_climb(const std::vector<Point>& losses);

}  // namespace telens::diagnosis
