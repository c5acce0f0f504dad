#include "hooks/plugin_loader.h"

#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/version.h"
#include "hooks/version.h"

namespace telens {

// ---- the ELF note with a plugin's versions

namespace {

constexpr std::string_view kOwner = "telens";
constexpr std::uint32_t kVersionsType = 1;
constexpr std::size_t kNoteAlignment = 4;  // bytes, for name and description
// A library has about ten segments, and notes of a few hundred bytes. A corrupt number of segments,
// each as long as the file, would take hours to scan.
constexpr std::size_t kMostSegments = 256;
constexpr std::size_t kLongestNotes = 64 << 10;

// Bytes of a file with checked access: damaged data throws.
class Bytes {
 public:
  Bytes(std::span<const char> bytes, const std::filesystem::path& path)
      : bytes_(bytes), path_(path) {}

  std::size_t size() const { return bytes_.size(); }

  Bytes range(std::size_t offset, std::size_t size) const {
    if (offset > bytes_.size() || size > bytes_.size() - offset) {
      raise<UsageError>("plugin {}: the file is truncated or damaged", path_.string());
    }
    return {bytes_.subspan(offset, size), path_};
  }

  template <typename T>
  T at(std::size_t offset) const {
    T value;
    std::memcpy(&value, range(offset, sizeof(T)).bytes_.data(), sizeof(T));
    return value;
  }

  // Reads up to the terminating zero, if present.
  std::string_view text() const {
    const std::string_view all(bytes_.data(), bytes_.size());
    return all.substr(0, all.find('\0'));
  }

 private:
  std::span<const char> bytes_;
  const std::filesystem::path& path_;
};

std::size_t padded(std::size_t size) {
  return (size + kNoteAlignment - 1) / kNoteAlignment * kNoteAlignment;
}

// Finds the description of TELens's note among a segment's notes.
std::optional<std::string_view> find_note(const Bytes& notes) {
  std::size_t offset = 0;
  while (offset + sizeof(Elf64_Nhdr) <= notes.size()) {
    const auto header = notes.at<Elf64_Nhdr>(offset);
    offset += sizeof(header);
    const std::string_view owner = notes.range(offset, header.n_namesz).text();
    offset += padded(header.n_namesz);
    if (owner == kOwner && header.n_type == kVersionsType) {
      return notes.range(offset, header.n_descsz).text();
    }
    offset += padded(header.n_descsz);
  }
  return std::nullopt;
}

}  // namespace

std::optional<PluginVersions> read_plugin_note(const std::filesystem::path& path) {
  // Opening a pipe would wait for a writer; a missing file is reported below.
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored)) {
    raise<UsageError>("plugin {}: not a regular file", path.string());
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    raise<UsageError>("plugin {}: cannot be read: {}", path.string(),
                      std::generic_category().message(errno));
  }
  const std::vector<char> content{std::istreambuf_iterator<char>(file), {}};
  const Bytes bytes(content, path);
  constexpr std::string_view kMagic(ELFMAG, SELFMAG);
  const bool elf = content.size() >= sizeof(Elf64_Ehdr) &&
                   std::string_view(content.data(), kMagic.size()) == kMagic &&
                   content[EI_CLASS] == ELFCLASS64;
  if (!elf) {
    raise<UsageError>("plugin {}: not a 64-bit ELF shared library", path.string());
  }
  const auto header = bytes.at<Elf64_Ehdr>(0);
  if (header.e_phnum > kMostSegments) {
    raise<UsageError>("plugin {}: it has {} segments, expected at most {}; the file is damaged",
                      path.string(), header.e_phnum, kMostSegments);
  }
  for (std::size_t i = 0; i < header.e_phnum; ++i) {
    const auto segment = bytes.at<Elf64_Phdr>(header.e_phoff + i * header.e_phentsize);
    if (segment.p_type != PT_NOTE || segment.p_filesz > kLongestNotes) continue;
    const auto text = find_note(bytes.range(segment.p_offset, segment.p_filesz));
    if (!text) continue;
    const std::size_t space = text->find(' ');
    if (space == std::string_view::npos) return PluginVersions{std::string(*text), ""};
    return PluginVersions{std::string(text->substr(0, space)),
                          std::string(text->substr(space + 1))};
  }
  return std::nullopt;
}

// ---- loading

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

// Returns the versions that the plugin was built for. Throws UsageError unless they match ours.
PluginVersions read_matching_versions(const std::filesystem::path& path) {
  const PluginVersions ours{TELENS_MINOR_VERSION, get_minor(torch_api_version())};
  const auto theirs = read_plugin_note(path);
  if (!theirs) {
    raise<UsageError>(
        "plugin {}: the library does not say for which versions it was built; define its entry "
        "with TELENS_PLUGIN (hooks/plugin.h or hooks/plugin_abi.h), or keep it out of feature_dirs",
        path.string());
  }
  const bool uses_torch = !theirs->torch.empty();
  if (uses_torch && ours.torch.empty()) {
    raise<UsageError>(
        "plugin {}: built with at::Tensor for torch {}, but telens-core for this torch is not "
        "loaded; install it, or build the plugin with hooks/plugin_abi.h (telens new-plugin --cpp)",
        path.string(), theirs->torch);
  }
  if (theirs->telens == ours.telens && (!uses_torch || theirs->torch == ours.torch)) {
    return *theirs;
  }
  raise<UsageError>(
      "plugin {}: built for telens {}{}{}, but this is telens {} with torch {}; rebuild it",
      path.string(), theirs->telens, uses_torch ? " and torch " : "", theirs->torch, ours.telens,
      ours.torch);
}

// Plugins without LibTorch are not linked to libtelens.so or libtelens_observe.so, since either may
// load them. Makes the symbols of this library global, so that the dynamic linker finds them.
void make_symbols_global() {
  Dl_info ours;
  if (dladdr(reinterpret_cast<void*>(&make_symbols_global), &ours) == 0) return;
  dlopen(ours.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
}

void load(const std::filesystem::path& path, FeatureRegistry& registry) {
  if (read_matching_versions(path).torch.empty()) make_symbols_global();
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
