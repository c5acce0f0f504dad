#include "hooks/plugin_note.h"

#include <elf.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/base/error.h"

namespace telens {
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

}  // namespace telens
