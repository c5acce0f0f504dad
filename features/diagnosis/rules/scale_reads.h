// How the scale of a tensor follows it, iteration by iteration, in bits.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "features/diagnosis/facts.h"

namespace telens::diagnosis {

struct ScaleRead {
  std::int64_t iteration = 0;
  double amax = 0;        // of the tensor
  double stands_for = 0;  // the amax that the scale was made of, if it was made by the recipe
  double margin = 0;      // of the recipe
  std::optional<double> jump;

  double staleness() const { return amax - stands_for; }
};

// Reads whose tensor is not zero and whose numbers are finite. `staleness`: the series of
// scale_staleness. Without cur_amax and scale_headroom there are none.
std::vector<ScaleRead> scale_reads(const Facts& facts, const Series& staleness);

// As large as the largest amax of the tensor up to and with each read.
std::vector<double> largest_amaxes(const std::vector<ScaleRead>& reads, const Series& amax);

}  // namespace telens::diagnosis
