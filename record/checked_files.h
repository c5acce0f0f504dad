// The files whose layout this process has checked (run_layout.h), so that a reader that opens them
// again and again, as one of many ranks does, need not go through all their objects each time.
#pragma once

#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <optional>
#include <set>

namespace telens::record {

// Identity and state of a file: any write to it changes this.
class FileState {
 public:
  // Nothing where the system does not tell, or where the file was changed so lately that another
  // change could carry the same time.
  static std::optional<FileState> settled(int descriptor);

  auto operator<=>(const FileState&) const = default;

 private:
  explicit FileState(const struct stat& status);

  using Time = std::array<std::int64_t, 2>;  // seconds since 1970, and nanoseconds
  static Time parts(const timespec& time) { return {time.tv_sec, time.tv_nsec}; }

  std::uint64_t device_, inode_, size_;
  Time modified_, changed_;
};

// Used under a Lock.
class CheckedFiles {
 public:
  bool contains(const std::optional<FileState>& file) const {
    return file && files_.contains(*file);
  }
  // `before` and `after` are states of the file before its check and after it.
  void add(const std::optional<FileState>& before, const std::optional<FileState>& after);

 private:
  std::set<FileState> files_;
};

CheckedFiles& checked_files();

}  // namespace telens::record
