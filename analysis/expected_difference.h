// The difference of two runs that GEMM precision or different seeds explain.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "analysis/facts.h"
#include "analysis/series.h"

namespace telens::analysis {

// The error of a run that the precision of its GEMMs explains.
class ExpectedError {
 public:
  // Returns the id in B of a layer of A, or record::kNoName if B does not have the layer.
  using LayerInB = std::function<std::int32_t(std::int32_t layer_in_a)>;
  ExpectedError(const Facts& a, const Facts& b, const LayerInB& in_b);

  // Half the distance of neighboring numbers, relative, in the coarsest format that an operand of
  // the layer was cast to, in either run.
  double unit(std::int32_t layer) const;
  // Returns the relative error of one product of the layer: two casts, whose rounding errors are
  // uniform within the unit, and a sum of K terms in FP32.
  double of_product(std::int32_t layer) const;
  // Returns the accumulated error after all upstream GEMMs (root sum of squares).
  double at(const Place& place) const;

 private:
  struct Layer {
    double unit = 0;
    double k = 0;
  };
  std::vector<Layer> layers_;    // by ids in A
  std::vector<double> forward_;  // squared errors up to each layer, itself included
};

// The change of a value within the iterations in which another seed may reach the same state.
// Trainings with different seeds learn at different speeds: up to twice as fast or as slowly. So
// they differ in iteration t by as much as one training changes between t/2 and 2t.
class Pace {
 public:
  Pace() = default;
  // `points`: values in bits, sorted by iteration.
  explicit Pace(const std::vector<Point>& points);

  // Returns the largest change in bits between this iteration and the recorded ones from half to
  // twice its number. Single outliers are smoothed by a median over three points. Returns 0 if the
  // iteration has no point.
  double at(std::int64_t iteration) const;

 private:
  Series changes_;
};

// Returns the Pace of a series of sizes; sizes that are not positive and finite are skipped.
Pace get_pace_of_sizes(const Series& sizes);

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
