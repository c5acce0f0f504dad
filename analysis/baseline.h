// The sizes of tensors, and the iterations in which they leave their usual range. Uses medians,
// because a single value does not change them.
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

// A lasting change of a size.
struct Shift {
  std::int64_t first = 0;  // first iteration of the shift
  std::int64_t last = 0;   // last iteration of the shift
  double bits = 0;         // log2 of value / usual
  double usual = 0;        // the size before
  double value = 0;        // the size in `first`
};

struct ShiftOptions {
  double least_bits = 3;       // minimum change
  std::size_t least_past = 4;  // minimum number of earlier points
  // Minimum number of consecutive points after the change; fewer at the end of the run.
  std::size_t sustained = 3;
  // A shift is a burst, and not reported, if it loses half of its change within this many points,
  // or if fewer than two of them are shifted.
  std::size_t passing = 0;
  std::size_t window = 16;  // number of earlier points that are compared
};

// Returns the first shift of a series of sizes. It differs from the median of the window by
// least_bits and by 4 spreads of the earlier steps. Its first step is at least 3 times the largest
// earlier step (spikes excluded), so that steady growth is not a shift. A shift of fewer than
// `sustained` points, because the run ends or the values become NaN, must be larger.
std::optional<Shift> first_shift(std::span<const Point> sizes, const ShiftOptions& options);

struct RampOptions {
  double least_bits = 4;       // minimum change
  double steady = 0.5;         // maximum range of the earlier points, in bits
  std::size_t least_past = 6;  // minimum number of earlier points
  std::size_t within = 16;     // maximum number of points until least_bits are reached
  double back = 0.1;           // maximum step in the other direction, in bits
};

// Returns the first steady movement of least_bits in one direction after steady values, in steps of
// at most 0.4 least_bits. A factor that is applied again in each iteration causes such a movement.
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

// Minimum crest_change(), in bits, of an activation that grew because of outliers.
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

// Returns the change of the median, in bits, from the last points before a shift to its first
// points, or to the points that come `delay` points later.
double settled_bits(const Series& series, const Shift& shift, std::int64_t delay = 0);

// Returns the first shift per series, up (`sign` 1) or down (-1). Shifts that begin within one
// iteration of each other form a group. Groups are sorted by time, each with its origin (by
// training order) first.
std::vector<std::vector<PlaceShift>> shifts_together(std::span<const Series> sizes, int sign,
                                                     const ShiftOptions& options);

// Returns true if the gradient next to the loss is among the shifted ones: a factor on the loss or
// different data is the cause. Under delayed scaling the other layers follow one after another,
// because their scales do.
bool comes_from_loss(std::span<const PlaceShift> together, std::span<const Series> gradients);

}  // namespace telens::analysis
