// Finds and opens feature plugins.
#pragma once

#include <string>
#include <vector>

#include "hooks/feature_registry.h"

namespace telens {

// Walks the folders recursively and lets every shared library (*.so) in them register its features
// and statistics, in path order. Libraries stay open until the process ends. Throws UsageError for
// a missing folder, and for a library that is not a plugin, was built for other versions, cannot be
// opened, or does not have an entry.
void load_plugins(const std::vector<std::string>& feature_dirs, FeatureRegistry& registry);

}  // namespace telens
