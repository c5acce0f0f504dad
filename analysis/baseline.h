// The sizes of tensors, and when they leave their usual values. Uses medians, which single values
// do not change.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "analysis/facts.h"
#include "analysis/series.h"

namespace telens::analysis {

// Returns NaN if there are no values.
double median(std::vector<double> values);
// Returns the median of the distances from the median, times 1.4826: the standard deviation if
// values are normally distributed.
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

// The statistics from which root mean squares are computed, as an entry of Rule::required.
inline constexpr std::string_view kSizes = "l2_norm|std";

// Returns the value computed from l2_norm and numel, or from std and mean; nullopt if neither was
// recorded.
std::optional<double> root_mean_square(const Facts& facts, const Place& place,
                                       std::int64_t iteration);
// Returns the root mean squares of every such tensor in training order. If numel and mean are
// missing, l2_norm or std is used instead: it is proportional while the batch size is constant.
std::vector<Series> root_mean_squares(const Facts& facts, TensorName tensor);
// Returns cur_amax over the root mean square.
std::vector<Series> crest_factors(const Facts& facts, TensorName tensor);

// An activation that is larger by outliers: bits of crest_change.
inline constexpr double kOfOutliers = 0.6;
// Shifts of activations.
inline constexpr ShiftOptions kActivationShift{.least_bits = 2.5};

// Shifts of gradients, which vary most: bursts of a few steps are normal.
inline constexpr ShiftOptions kGradientShift{.least_bits = 3, .sustained = 4, .passing = 8};

// Returns the change of cur_amax over root mean square, in bits, during a shift of the latter.
// Outlier values, channels or tokens change it; a factor on all elements does not.
double crest_change(const Facts& facts, const Place& place, const Shift& shift);

struct PlaceShift {
  Place place;
  Shift shift;
  double settled_bits = 0;  // settled_bits() of the shift
};

// Returns the bits between the median of the last points before a shift and the median of its first
// points, or of the points that come `delay` points later.
double settled_bits(const Series& series, const Shift& shift, std::int64_t delay = 0);

// Returns the first shift per series, up (`sign` 1) or down (-1). Shifts that begin within one
// iteration of each other form a group. Groups are sorted by time, each with its origin (by
// training order) first.
std::vector<std::vector<PlaceShift>> shifts_together(std::span<const Series> sizes, int sign,
                                                     const ShiftOptions& options);

// Returns true if the gradient next to the loss changed together with others: a factor on the loss,
// or other data. Under delayed scaling the layers follow one after another, as their scales do.
bool comes_from_loss(std::span<const PlaceShift> together, std::span<const Series> gradients);

}  // namespace telens::analysis
