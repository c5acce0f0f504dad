// Compares the scale of a tensor with its amax in each iteration, in bits (log2).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "analysis/facts.h"

namespace telens::analysis {

// The statistics that scales are read from, in the syntax of Rule::required.
inline constexpr std::string_view kScales = "scale_staleness|scale_inv_max";

// With micro-batches, each iteration has several scales. `amax` is the largest over the
// micro-batches; `scale_amax` belongs to any one of the scales.
struct ScaleRead {
  std::int64_t iteration = 0;
  double amax = 0;             // of the tensor
  double scale_amax = 0;       // amax for which the recipe computes this scale
  double margin = 0;           // of the recipe; only if ScaleSeries::has_margin
  double span = 0;             // between the smallest and largest scale of the iteration
  std::optional<double> jump;  // change of the scale since the previous iteration

  double staleness() const { return amax - scale_amax; }
};

// The reads in which the tensor was nonzero and all values were finite.
struct ScaleSeries {
  Place place;
  std::vector<ScaleRead> reads = {};
  bool has_margin = false;  // true if ScaleHealth was recorded
};

// Returns all tensors with one scale per tensor: from ScaleHealth, else from scale_inv_min and
// scale_inv_max if they are equal in each read. Both require cur_amax. Without ScaleHealth, the
// largest value of the format is E4M3's or E5M2's, whichever explains more reads.
std::vector<ScaleSeries> scale_series(const Facts& facts);

// Iterations after which an amax has left the history of a recipe. The length of the history is not
// recorded; few are longer than Transformer Engine's default of 1024.
inline constexpr std::int64_t kLongestHistory = 1024;

// Returns the running maximum of the amax up to each read; infinity as long as a history can
// contain a non-finite amax, because its effect on the history is unknown.
std::vector<double> largest_amaxes(const std::vector<ScaleRead>& reads, const Series& amax);

}  // namespace telens::analysis
