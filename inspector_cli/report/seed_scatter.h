// How far the sizes of two runs are apart if only their seeds differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "features/diagnosis/facts.h"

namespace telens::cli {

// The root mean squares of one tensor in both runs.
struct SizePair {
  const diagnosis::Series* a = nullptr;
  const diagnosis::Series* b = nullptr;
};

// True if the runs began with other weights, or have other data: most weights differ in their first
// common iteration, or the first activation of the forward pass does in one of the first three.
bool have_other_seeds(const std::vector<SizePair>& pairs, const diagnosis::Facts& a,
                      const diagnosis::Facts& b);

// How far other series of the same tensor are from 1, by the mean of log2(b / a) over the last
// iterations of each, so that only what lasts counts; of the first iteration its own value.
class SeedScatter {
 public:
  SeedScatter(const std::vector<SizePair>& pairs, const diagnosis::Facts& a);

  // The root mean square over the other series of the layer's kind or of all layers, whichever is
  // larger, in bits; 0 if none is known. `series`: an `a` of the pairs.
  double at(const diagnosis::Series& series, std::int64_t iteration) const;

 private:
  struct Sum {
    double squares = 0;
    std::size_t count = 0;
  };
  using Key = std::tuple<int, int, std::string, std::int64_t>;  // kind "": all layers

  Key make_key(const diagnosis::Place& place, bool of_kind, std::int64_t iteration) const;

  const diagnosis::Facts& facts_;
  std::map<const diagnosis::Series*, std::map<std::int64_t, double>> means_;
  std::map<Key, Sum> sums_;
};

}  // namespace telens::cli
