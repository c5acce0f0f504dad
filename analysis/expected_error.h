// Expected difference of two runs from GEMM precision only.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "analysis/facts.h"

namespace telens::analysis {

class ExpectedError {
 public:
  // The id in B of a layer of A; record::kNoName: B has none.
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

}  // namespace telens::analysis
