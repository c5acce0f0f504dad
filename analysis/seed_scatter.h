// How far the sizes of two runs are apart if only their seeds differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "analysis/facts.h"

namespace telens::analysis {

// Root mean squares of a tensor in both runs.
struct SizePair {
  const Series* a = nullptr;
  const Series* b = nullptr;
};

// Returns true if the runs began with different weights or have different data: most weights differ
// in the first iteration by more than BF16 rounding, or the first forward activation differs in one
// of the first three iterations. Returns false if the runs begin in different iterations, because
// training separates equal weights.
bool have_other_seeds(const std::vector<SizePair>& pairs, const Facts& a, const Facts& b);

// Estimates how much of a difference other seeds explain, from the other series of the same tensor:
// the median of log2(b / a) over the last 8 iterations of a series, so that only lasting
// differences count, and the single value in the first iteration. Uses the median of these series,
// which a few diverging ones do not change.
class SeedScatter {
 public:
  SeedScatter(const std::vector<SizePair>& pairs, const Facts& a);

  // Returns bits, with a floor and a cap: 6 times 1.4826 times the median over the other series of
  // the layer's kind or of all layers, whichever is larger. With fewer than 4 series, returns the
  // floor. `series` must be an `a` of the pairs.
  double tolerance(const Series& series, std::int64_t iteration) const;

 private:
  using Key = std::tuple<int, int, std::string, std::int64_t>;  // kind "": all layers

  Key make_key(const Place& place, bool of_kind, std::int64_t iteration) const;

  const Facts& facts_;
  std::map<const Series*, std::map<std::int64_t, double>> usual_;
  std::map<Key, std::vector<double>> sizes_;  // of usual_, ascending
};

}  // namespace telens::analysis
