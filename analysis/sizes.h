// How large tensors are, and where several of them leave their usual size together.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "analysis/baseline.h"
#include "analysis/facts.h"

namespace telens::analysis {

// The statistics that root mean squares are computed from, as a rule requires them.
inline constexpr std::string_view kSizes = "l2_norm|std";

// Computed from l2_norm and numel, or from std and mean; nullopt if neither was recorded.
std::optional<double> root_mean_square(const Facts& facts, const Place& place,
                                       std::int64_t iteration);
// Returns the root mean squares of every such tensor in training order. If numel and mean are
// missing, l2_norm or std is used instead: it is proportional while the batch size is constant.
std::vector<Series> root_mean_squares(const Facts& facts, TensorName tensor);
// cur_amax over the root mean square.
std::vector<Series> crest_factors(const Facts& facts, TensorName tensor);

// An activation that is larger by outliers: bits of crest_change.
inline constexpr double kOfOutliers = 0.6;
// Shifts of activations.
inline constexpr ShiftOptions kActivationShift{.least_bits = 2.5};

// The shift that counts for gradients, which vary more than anything else: bursts of a few steps,
// which pass by themselves, are training's way.
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

// True if the gradient next to the loss changed, and others with it: a factor on the loss, or other
// data. Under delayed scaling the layers follow one after the other, as their scales do.
bool comes_from_loss(std::span<const PlaceShift> together, std::span<const Series> gradients);

}  // namespace telens::analysis
