// Reads the versions that a plugin was built for from its file.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace telens {

struct PluginVersions {
  std::string telens;
  std::string torch;  // "" if the plugin does not use LibTorch

  friend bool operator==(const PluginVersions&, const PluginVersions&) = default;
};

// Returns nullopt if the file is a shared library without the note of TELENS_PLUGIN. Throws
// UsageError if the file is not a 64-bit ELF file or is truncated.
std::optional<PluginVersions> read_plugin_note(const std::filesystem::path& path);

}  // namespace telens
