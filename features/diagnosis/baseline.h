// What is usual for a series, and where it leaves that: medians, which single values do not move.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "features/diagnosis/series.h"

namespace telens::diagnosis {

double median(std::vector<double> values);  // NaN of none
// The median of the distances from the median, times 1.4826: the standard deviation where values
// are normally distributed.
double spread(const std::vector<double>& values);

// log2 of a size; what is 0 or less, or no number, is 2^-200.
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
  double least_bits = 3;       // less is no shift
  std::size_t least_past = 4;  // points that make a past
  std::size_t sustained = 3;   // consecutive points that stay away; fewer at the end of the run
  std::size_t window = 16;     // of past points
};

// The first shift of a series of sizes: away from the median of its past by least_bits, by 4
// spreads of it, and by a step of 3 times the largest one in the past, so that a steady growth is
// none.
std::optional<Shift> first_shift(std::span<const Point> sizes, const ShiftOptions& options);

}  // namespace telens::diagnosis
