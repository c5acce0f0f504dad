// Finds where two runs diverge: aligns tensors by layer, tensor, GEMM and iteration and compares
// them with the expected difference from formats, depth and chance, each series by itself and all
// series of a tensor together.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "analysis/divergence.h"
#include "analysis/facts.h"
#include "analysis/layer_map.h"

namespace telens::analysis {

// A series without a counterpart in the other run, or without a common iteration.
struct Unmatched {
  Place place = {};        // in its own run
  std::string layer = {};  // "": a scalar
  std::string quantity = {};
};

struct RunDifference {
  std::vector<Divergence> divergences;  // by iteration, then in the order of training
  std::size_t compared = 0;             // series with common iterations
  bool other_seeds = false;             // they began with other weights, or have other data
  std::vector<Unmatched> unmatched_in_a, unmatched_in_b;
  std::vector<std::string> only_in_a, only_in_b;  // layers
  std::size_t common_layers = 0;
};

// `spread` is a third run with another seed; its distance from A measures chance. If nullptr, the
// variation of A between iterations does.
RunDifference compare_runs(const Facts& a, const Facts& b, const Facts* spread,
                           const LayerMap& map);

}  // namespace telens::analysis
