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

// From l2_norm and numel, or from std and mean. nullopt: neither was recorded.
std::optional<double> root_mean_square(const Facts& facts, const Place& place,
                                       std::int64_t iteration);
// Root mean squares of all such tensors, in the order of turns. Where numel and mean are missing
// too, l2_norm or std stands for it: they change with it while a batch keeps its size.
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

// How many bits cur_amax over the root mean square changed with a shift of the latter: what single
// values, channels or tokens do, and a factor on all elements does not.
double crest_change(const Facts& facts, const Place& place, const Shift& shift);

struct PlaceShift {
  Place place;
  Shift shift;
  double settled_bits = 0;  // from the median of the last points before to that of the first ones
};

// From the median of the last points before a shift to that of its first ones, or of those that
// come `delay` points later.
double settled_bits(const Series& series, const Shift& shift, std::int64_t delay = 0);

// The first shift of each series, up (`sign` 1) or down (-1); those that begin within an iteration
// of each other together, the earliest first, in each the origin (by turn) first.
std::vector<std::vector<PlaceShift>> shifts_together(std::span<const Series> sizes, int sign,
                                                     const ShiftOptions& options);

// True if the gradient next to the loss changed, and others with it: a factor on the loss, or other
// data. Under delayed scaling the layers follow one after the other, as their scales do.
bool comes_from_loss(std::span<const PlaceShift> together, std::span<const Series> gradients);

}  // namespace telens::analysis
