// How far two runs may lie apart by what their GEMMs ran in alone.
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
  // The relative error of one of its products: two casts, which round evenly within their unit, and
  // a sum of K terms in FP32.
  double of_product(std::int32_t layer) const;
  // That of a tensor behind all products on its way: their errors add up as squares.
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
