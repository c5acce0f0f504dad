#include "record/checked_files.h"

#include <algorithm>
#include <cstddef>
#include <ctime>

namespace telens::record {
namespace {

// File systems count time in steps: 4 ms on Linux, up to 2 s on FAT.
constexpr std::time_t kSettledAfter = 3;  // seconds

constexpr std::size_t kMostFiles = 1 << 16;

}  // namespace

FileState::FileState(const struct stat& status)
    : device_(status.st_dev),
      inode_(status.st_ino),
      size_(static_cast<std::uint64_t>(status.st_size)),
      modified_(parts(status.st_mtim)),
      changed_(parts(status.st_ctim)) {}

// By the time of the last change of the inode too, which no program can set.
std::optional<FileState> FileState::settled(int descriptor) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return std::nullopt;
  const std::time_t latest = std::max(status.st_mtim.tv_sec, status.st_ctim.tv_sec);
  if (std::time(nullptr) - latest < kSettledAfter) return std::nullopt;
  return FileState(status);
}

void CheckedFiles::add(const std::optional<FileState>& before,
                       const std::optional<FileState>& after) {
  if (!before || before != after) return;
  if (files_.size() >= kMostFiles) files_.clear();
  files_.insert(*after);
}

CheckedFiles& checked_files() {
  static auto* const files = new CheckedFiles;  // outlives readers that end at exit
  return *files;
}

}  // namespace telens::record
