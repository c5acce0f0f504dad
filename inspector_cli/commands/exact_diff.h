// telens diff --exact: reports the first tensor whose bits differ.
#pragma once

#include <string>

#include "analysis/layer_map.h"

namespace telens::cli {

// Prints the difference of the runs at these paths, as text or as one JSON object. `map` replaces
// parts of A's layer names. Returns true if a tensor differs; throws UsageError if no digest is in
// both runs.
bool report_exact_difference(const std::string& a, const std::string& b,
                             const analysis::LayerMap& map, bool as_json);

}  // namespace telens::cli
