// Corresponding layers of two runs that name their layers differently.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace telens::analysis {

struct LayerReplacement {
  std::string from;       // text in A's layer names; "" is at the start of every name
  std::string to;         // text in B's
  bool at_start = false;  // replaces only a prefix
};

// In each name, the first entry whose text occurs replaces its first occurrence.
using LayerMap = std::vector<LayerReplacement>;

// Returns the name in B of a layer of A.
std::string map_layer(std::string name, const LayerMap& map);

// Returns the map that adds a prefix of whole components, such as "model.", to A's names or removes
// it, if at least half of the layers of the run with fewer layers correspond only with it. Returns
// an empty map if at least half of them have equal names, or if no prefix fits.
LayerMap find_layer_map(std::span<const std::string> a, std::span<const std::string> b);

}  // namespace telens::analysis
