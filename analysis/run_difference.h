// Finds where two runs diverge. Aligns their series by layer, tensor, GEMM and iteration, and
// compares the differences with those that formats, depth and chance explain. Each series is
// compared by itself, and all series of a tensor are compared for a common factor. The runs may
// name corresponding layers differently.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "analysis/divergence.h"
#include "analysis/facts.h"

namespace telens::analysis {

struct LayerReplacement {
  std::string from;       // text in A's layer names; "" is at the start of every name
  std::string to;         // text in B's
  bool at_start = false;  // replaces only a prefix
};

// Only the first entry whose text occurs in a name is applied, to its first occurrence.
using LayerMap = std::vector<LayerReplacement>;

// Returns the name in B of a layer of A.
std::string map_layer(std::string name, const LayerMap& map);

// Returns the map that adds a prefix of whole components, such as "model.", to A's names or removes
// it, if at least half of the layers of the run with fewer layers correspond only with it. Returns
// an empty map if at least half of them have equal names, or if no prefix fits.
LayerMap find_layer_map(std::span<const std::string> a, std::span<const std::string> b);

// A series without a counterpart in the other run, or without a common iteration.
struct Unmatched {
  Place place = {};        // in its own run
  std::string layer = {};  // "": a scalar
  std::string quantity = {};
};

struct RunDifference {
  std::vector<Divergence> divergences;  // by iteration, then in the order of training
  std::size_t compared = 0;             // series with common iterations
  bool other_seeds = false;  // the runs began with different weights or have different data
  std::vector<Unmatched> unmatched_in_a, unmatched_in_b;
  std::vector<std::string> only_in_a, only_in_b;  // layers
  std::size_t common_layers = 0;
};

// `spread` is a third run with another seed, whose distance from A measures the effect of chance.
// If it is nullptr, the variation of A between iterations is used instead.
RunDifference compare_runs(const Facts& a, const Facts& b, const Facts* spread,
                           const LayerMap& map);

}  // namespace telens::analysis
