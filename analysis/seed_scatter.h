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

// The root mean squares of one tensor in both runs.
struct SizePair {
  const Series* a = nullptr;
  const Series* b = nullptr;
};

// True if the runs began with other weights, or have other data: most weights differ in the first
// iteration of both runs by more than BF16 rounds them, or the first activation of the forward pass
// does in one of the first three. False if the runs have not begun in the same iteration: training
// moves weights apart that were equal.
bool have_other_seeds(const std::vector<SizePair>& pairs, const Facts& a, const Facts& b);

// What other seeds explain of a series, by how far the other series of its tensor are from 1: by
// the mean of log2(b / a) over the last iterations of each, so that only what lasts counts; of the
// first iteration its own value. The median of the others, which a few diverging ones do not move.
class SeedScatter {
 public:
  SeedScatter(const std::vector<SizePair>& pairs, const Facts& a);

  // In bits, with a floor and a cap: 6 times 1.4826 times the median over the others of the layer's
  // kind or of all layers, whichever is larger. Fewer than 4 series show no scatter: the floor.
  // `series`: an `a` of the pairs.
  double tolerance(const Series& series, std::int64_t iteration) const;

 private:
  using Key = std::tuple<int, int, std::string, std::int64_t>;  // kind "": all layers

  Key make_key(const Place& place, bool of_kind, std::int64_t iteration) const;

  const Facts& facts_;
  std::map<const Series*, std::map<std::int64_t, double>> means_;
  std::map<Key, std::vector<double>> sizes_;  // of the means, ascending
};

}  // namespace telens::analysis
