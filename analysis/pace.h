// How far a training moves a value within the iterations in which another seed may reach its state.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/series.h"

namespace telens::analysis {

// Trainings with different seeds learn at different speeds: up to twice as fast or as slowly. So
// they differ in iteration t by as much as one training changes between t/2 and 2t.
class Pace {
 public:
  Pace() = default;
  // `points`: values in bits, sorted by iteration.
  explicit Pace(const std::vector<Point>& points);

  // Returns the largest change in bits between this iteration and the recorded ones from half to
  // twice its number. Single outliers are smoothed by a median over three points. Returns 0 if the
  // iteration has no point.
  double at(std::int64_t iteration) const;

 private:
  Series changes_;
};

// Returns the Pace of a series of sizes; sizes that are not positive and finite are skipped.
Pace get_pace_of_sizes(const Series& sizes);

}  // namespace telens::analysis
