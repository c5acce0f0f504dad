#include "hooks/plugin_loader.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/base/version.h"
#include "hooks/plugin_note.h"
#include "hooks/plugin_registrar.h"
#include "hooks/version.h"

namespace telens {
namespace {

constexpr const char* kEntry = "telens_register_features";

std::vector<std::filesystem::path> plugins_in(const std::string& folder) {
  std::error_code error;
  std::filesystem::recursive_directory_iterator walk(folder, error);
  if (error) {
    raise<UsageError>("feature_dirs: cannot read the folder '{}': {}", folder, error.message());
  }
  std::vector<std::filesystem::path> plugins;
  for (const auto& entry : walk) {
    if (entry.is_regular_file() && entry.path().extension() == ".so") {
      plugins.push_back(std::filesystem::absolute(entry.path()));
    }
  }
  std::ranges::sort(plugins);
  return plugins;
}

// Returns "2.11" of "2.11.0".
std::string get_minor(std::string_view version) {
  const std::size_t minor = version.find('.') + 1;
  return std::string(version.substr(0, version.find('.', minor)));
}

void check_versions(const std::filesystem::path& path) {
  const PluginVersions ours{TELENS_MINOR_VERSION, get_minor(torch_version())};
  const auto theirs = read_plugin_note(path);
  if (!theirs) {
    raise<UsageError>(
        "plugin {}: the library does not say for which versions it was built; define its entry "
        "with TELENS_PLUGIN (hooks/plugin.h or hooks/plugin_abi.h), or keep it out of feature_dirs",
        path.string());
  }
  const bool uses_torch = !theirs->torch.empty();
  if (theirs->telens == ours.telens && (!uses_torch || theirs->torch == ours.torch)) return;
  raise<UsageError>(
      "plugin {}: built for telens {}{}{}, but this is telens {} with torch {}; rebuild it",
      path.string(), theirs->telens, uses_torch ? " and torch " : "", theirs->torch, ours.telens,
      ours.torch);
}

void load(const std::filesystem::path& path, FeatureRegistry& registry) {
  check_versions(path);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    raise<UsageError>("plugin {}: cannot be opened: {}", path.string(), dlerror());
  }
  using Entry = void (*)(PluginRegistrar&);
  const auto entry = reinterpret_cast<Entry>(dlsym(library, kEntry));
  if (entry == nullptr) {
    raise<UsageError>("plugin {}: the entry {} is missing; define it with TELENS_PLUGIN",
                      path.string(), kEntry);
  }
  PluginRegistrar registrar(registry, path.string());
  entry(registrar);
}

}  // namespace

void PluginRegistrar::add(FeatureRegistration registration) {
  registration.description.owner = path_;
  registry_.add(std::move(registration));
}

void PluginRegistrar::add(StatisticRegistration registration) {
  registration.description.owner = path_;
  registry_.add(std::move(registration));
}

void load_plugins(const std::vector<std::string>& feature_dirs, FeatureRegistry& registry) {
  for (const std::string& folder : feature_dirs) {
    for (const std::filesystem::path& path : plugins_in(folder)) load(path, registry);
  }
}

}  // namespace telens
