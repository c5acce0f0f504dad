// Detects when a series leaves its usual values. Uses medians, which single values do not change.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "analysis/series.h"

namespace telens::analysis {

double median(std::vector<double> values);  // NaN of none
// The median of the distances from the median, times 1.4826: the standard deviation where values
// are normally distributed.
double spread(const std::vector<double>& values);

// Returns log2 of a size; 2^-200 if the size is NaN, zero or negative.
double bits(double size);

// A series of sizes, in bits.
struct Shift {
  std::int64_t first = 0;  // iteration
  std::int64_t last = 0;   // up to which it stays away
  double bits = 0;         // above the usual, negative below it
  double usual = 0;        // size
  double value = 0;        // in `first`
};

struct ShiftOptions {
  double least_bits = 3;       // less is not a shift
  std::size_t least_past = 4;  // points that make a past
  std::size_t sustained = 3;   // consecutive points that stay away; fewer at the end of the run
  // A shift that goes back by half before so many points is a burst, and so is one that is not away
  // in two of them.
  std::size_t passing = 0;
  std::size_t window = 16;  // number of past points
};

// Returns the first shift of a series of sizes: a point that is least_bits and 4 spreads of the
// past steps away from the median of the window, reached by a step of 3 times the largest past step
// (spikes excluded), so that steady growth is not a shift. A shift of fewer than `sustained`
// points, because the run ends or the values become NaN, must be larger.
std::optional<Shift> first_shift(std::span<const Point> sizes, const ShiftOptions& options);

struct RampOptions {
  double least_bits = 4;
  double steady = 0.5;         // bits between the largest and the smallest of the past
  std::size_t least_past = 6;  // points
  std::size_t within = 16;     // points from the first one to that which is least_bits away
  double back = 0.1;           // bits that a step may go back
};

// Returns the first steady movement in one direction away from a steady past, up to least_bits, in
// steps of at most 0.4 least_bits, as a factor causes that is applied again in each iteration.
// `sign`: 1 up, -1 down.
std::optional<Shift> first_ramp(std::span<const Point> sizes, int sign, const RampOptions& options);

}  // namespace telens::analysis
