// How the scale of a tensor follows it, iteration by iteration, in bits.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "analysis/facts.h"

namespace telens::analysis {

// The statistics that scales are read from, as a rule requires them.
inline constexpr std::string_view kScales = "scale_staleness|scale_inv_max";

// With micro-batches an iteration has a scale for each; the amax is the largest of all, and which
// of the scales `stands_for` belongs to is not recorded.
struct ScaleRead {
  std::int64_t iteration = 0;
  double amax = 0;        // the tensor's
  double stands_for = 0;  // the amax that the scale was made of, if it was made by the recipe
  double margin = 0;      // the recipe's
  double span = 0;        // between the smallest and the largest scale of one iteration
  std::optional<double> jump;

  double staleness() const { return amax - stands_for; }
};

// The reads of one tensor whose tensor is not zero and whose numbers are finite.
struct ScaleSeries {
  Place place;
  std::vector<ScaleRead> reads = {};
  bool knows_margin = false;
};

// All tensors with one scale: from ScaleHealth, else from scale_inv_min and scale_inv_max, which
// are equal in each read of such a tensor; cur_amax is needed for both. Without ScaleHealth the
// format's largest value is the one that explains more reads, that of E4M3 or of E5M2.
std::vector<ScaleSeries> scale_series(const Facts& facts);

// Iterations after which the amax history of a recipe has lost an amax: how long histories are is
// not recorded, and few are longer than Transformer Engine's own, of 1024.
inline constexpr std::int64_t kLongestHistory = 1024;

// As large as the largest amax of the tensor up to and with each read; infinite as long as a
// history can hold an amax that was not finite, since it is not known what it makes of it.
std::vector<double> largest_amaxes(const std::vector<ScaleRead>& reads, const Series& amax);

}  // namespace telens::analysis
