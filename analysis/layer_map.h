// Corresponding layers of two runs that name their layers differently.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace telens::analysis {

// {text in A's layer names, replacement in B's}. In each name, the first pair whose text occurs
// replaces its first occurrence. An empty text occurs at the start of every name.
using LayerMap = std::vector<std::pair<std::string, std::string>>;

// Returns the name in B of a layer of A.
std::string map_layer(std::string name, const LayerMap& map);

// Returns the map that adds a prefix of whole components, such as "model.", to A's names or removes
// it, if at least half of the layers of the run with fewer layers correspond only with it. Returns
// an empty map if at least half of them have equal names, or if no prefix fits.
LayerMap find_layer_map(std::span<const std::string> a, std::span<const std::string> b);

}  // namespace telens::analysis
