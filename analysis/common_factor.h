// A factor that many series of two runs have in common. Rounding scatters around 1, so a common
// factor is evidence that no single series gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "analysis/series.h"

namespace telens::analysis {

constexpr std::size_t kLeastPairs = 4;  // fewer series have nothing in common

// Root mean squares of a tensor in both runs, and in a third run.
struct SeriesPair {
  const Series* a = nullptr;
  const Series* b = nullptr;
  const Series* third = nullptr;    // nullptr without a third run
  double error_a = 0, error_b = 0;  // relative errors that formats explain
};

struct CommonFactor {
  std::size_t origin = 0;                 // index of the first pair that has it
  std::vector<std::size_t> pairs = {};    // indices of all pairs that have it
  std::int64_t first = 0;                 // iteration
  std::optional<std::int64_t> last = {};  // before the runs agree again; nullopt if never
  double factor = 1;                      // B over A
  double tolerance = 1;                   // the largest factor that formats and chance explain
};

// The largest factor between the losses of the two runs in an iteration, at least 1: gradients may
// differ as much.
using LossFactor = std::function<double(std::int64_t iteration)>;

// Returns the earliest factor that neighbors in `pairs` have in common. The pairs have one tensor
// and one rank, in training order; at least four must have the factor, all or a part from one layer
// on. A factor counts if it lasts for three consecutive iterations, or for all if there are fewer.
// Only iterations in which both runs have at least four series and half of them count. The
// tolerance, in bits, is the root of the sum of the squares of the growth of a norm by independent
// errors, log2(1 + error^2) / 2 of A minus that value of B; of 4 times the median change between
// iterations that the ratios share (with different seeds: the series of A, because their variation
// does not cancel) or, with a third run, 3 times the largest common factor between A and that run;
// and of 0.5 (1 + 1 / sqrt(n)) for n series in the iteration, or 3 standard errors of their median
// if larger. For gradients the factor between the losses is added; for runs with different seeds,
// the pace of the change that the series of A share (class Pace).
std::optional<CommonFactor> find_common_factor(const std::vector<SeriesPair>& pairs,
                                               const LossFactor& loss_factor, bool other_seeds);

}  // namespace telens::analysis
