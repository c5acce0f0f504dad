// Finds and opens feature plugins, and reads from their files the versions that they were built
// for.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "hooks/feature_registry.h"

namespace telens {

// Walks the folders recursively and lets every shared library (*.so) in them register its features
// and statistics, in path order. Libraries stay open until the process ends. Throws UsageError for
// a missing folder, and for a library that is not a plugin, was built for other versions, cannot be
// opened, or does not have an entry.
void load_plugins(const std::vector<std::string>& feature_dirs, FeatureRegistry& registry);

// The versions that a plugin was built for.
struct PluginVersions {
  std::string telens;
  std::string torch;  // "" if the plugin does not use LibTorch

  friend bool operator==(const PluginVersions&, const PluginVersions&) = default;
};

// Returns nullopt if the file is a shared library without the note of TELENS_PLUGIN. Throws
// UsageError if the file is not a 64-bit ELF file or is truncated.
std::optional<PluginVersions> read_plugin_note(const std::filesystem::path& path);

}  // namespace telens
