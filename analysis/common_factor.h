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

constexpr std::size_t kLeastPairs = 4;  // fewer series are no evidence of a common factor

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
  std::optional<std::int64_t> last = {};  // nullopt if it lasts to the end
  double factor = 1;                      // B over A
  double tolerance = 1;                   // the largest factor that formats and chance explain
};

// Returns the ratio of the larger to the smaller loss of the two runs in an iteration. Gradients
// may differ by this factor.
using LossFactor = std::function<double(std::int64_t iteration)>;

// Returns the earliest factor that consecutive entries of `pairs` have in common. The pairs are in
// training order and belong to one tensor and one rank. At least four must have the factor. It must
// last for three consecutive iterations, or for all if there are fewer. An iteration counts if both
// runs have at least four of the series and at least half of them.
//
// The tolerance, in bits, is the root of the sum of the squares of
// - the growth of a norm by independent errors: log2(1 + error^2) / 2 of A minus the same of B;
// - the variation between iterations: 4 times the median common change of the ratios. With
//   different seeds: of the series of A, because variations do not cancel. With a third run,
//   3 times the largest common factor between A and that run instead;
// - the larger of 0.5 (1 + 1 / sqrt(n)) for n series in the iteration, and 3 standard errors of
//   their median.
// Two terms are added: for gradients the factor between the losses, and for runs with different
// seeds the pace of the common change of A (class Pace).
std::optional<CommonFactor> find_common_factor(const std::vector<SeriesPair>& pairs,
                                               const LossFactor& loss_factor, bool other_seeds);

}  // namespace telens::analysis
