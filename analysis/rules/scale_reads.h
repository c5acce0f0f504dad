// How the scale of a tensor follows it, iteration by iteration, in bits.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "analysis/facts.h"

namespace telens::analysis {

// The statistics that scales are read from, as a rule requires them.
inline constexpr std::string_view kScales = "scale_staleness|scale_inv_max";

// With micro-batches, each iteration has several scales. The amax is the largest over the
// micro-batches; which scale `stands_for` belongs to is not recorded.
struct ScaleRead {
  std::int64_t iteration = 0;
  double amax = 0;        // the tensor's
  double stands_for = 0;  // the amax that the scale was made of, if it was made by the recipe
  double margin = 0;      // the recipe's
  double span = 0;        // between an iteration's smallest and largest scale
  std::optional<double> jump;

  double staleness() const { return amax - stands_for; }
};

// Reads of a tensor that is nonzero and whose numbers are finite.
struct ScaleSeries {
  Place place;
  std::vector<ScaleRead> reads = {};
  bool knows_margin = false;
};

// Returns all tensors with one scale per tensor: from ScaleHealth, else from scale_inv_min and
// scale_inv_max if they are equal in each read. Both require cur_amax. Without ScaleHealth, the
// largest value of the format is E4M3's or E5M2's, whichever explains more reads.
std::vector<ScaleSeries> scale_series(const Facts& facts);

// Iterations after which the amax history of a recipe has lost an amax: how long histories are is
// not recorded, and few are longer than Transformer Engine's own, of 1024.
inline constexpr std::int64_t kLongestHistory = 1024;

// Returns the running maximum of the amax up to each read; infinity as long as a history can
// contain a non-finite amax, because its effect on the history is unknown.
std::vector<double> largest_amaxes(const std::vector<ScaleRead>& reads, const Series& amax);

}  // namespace telens::analysis
