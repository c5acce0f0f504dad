// The versions that a plugin was built for, read from its file.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace telens {

struct PluginVersions {
  std::string telens;
  std::string torch;

  friend bool operator==(const PluginVersions&, const PluginVersions&) = default;
};

// nullopt: the file is a shared library without the note of TELENS_PLUGIN. Throws UsageError for
// what is no 64-bit ELF file, or a truncated one.
std::optional<PluginVersions> read_plugin_note(const std::filesystem::path& path);

}  // namespace telens
