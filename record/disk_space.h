// Questions to the file system about a file.
#pragma once

#include <fcntl.h>
#include <cstdint>
#include <string>

#include "core/base/error.h"

namespace telens::record {

// 0 where there is no such file.
std::uint64_t size_of(const std::string& path);
double time_of_change(const std::string& path);  // seconds since 1970

// True if the open file is known to have this name no more: it has gone, or another file has it. A
// disk that does not answer is no reason to think so.
bool has_left(int descriptor, const std::string& path);

// How often to open a file again that has left its name. Where inode numbers do not last, as on
// some FUSE and network file systems, every file seems to have left, and there would be no end.
inline constexpr int kMostOpenings = 16;

// Locks by which processes tell each other what they do with a run file: single bytes far behind
// every file's end. HDF5 locks whole files with flock; these are open file description locks, which
// flock does not see and which die with their process.

enum class Mark : off_t {
  live = static_cast<off_t>(1) << 62,  // the file is being written
  rewritten,                           // another file is to take its name
};

// For fcntl with F_OFD_SETLK or F_OFD_GETLK.
inline struct flock make_lock(Mark mark, short kind) {
  struct flock lock {};
  lock.l_type = kind;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(mark);
  lock.l_len = 1;
  return lock;
}

// Disk space of a growing file, reserved before it is needed: a full disk is then found before HDF5
// begins a write, not in the middle of one, and the file can still be ended properly.
// Also holds the mark by which others see that a live process writes the file.

// The system refused to create, read or write a file. The text ends with the system's message.
class SystemError : public RecordError {
 public:
  using RecordError::RecordError;
};

// Thrown before anything is written.
class DiskFull : public RecordError {
 public:
  using RecordError::RecordError;
};

// The disk has room, but the recording may not take it.
class MaxSizeReached final : public DiskFull {
 public:
  explicit MaxSizeReached(std::uint64_t max_size);
};

// The most that ending a file adds: the last chunks, the names and rows of the end, their indexes.
inline constexpr std::uint64_t kEndReserve = 256 << 10;

class DiskSpace {
 public:
  DiskSpace() = default;
  // The file may grow to max_size less `used_bytes`, those of other files; 0: as far as the disk
  // lets it.
  explicit DiskSpace(const std::string& path, std::uint64_t max_size = 0,
                     std::uint64_t used_bytes = 0);
  ~DiskSpace();
  DiskSpace(DiskSpace&& other) noexcept;
  DiskSpace& operator=(DiskSpace&& other) noexcept;

  // Throws DiskFull when the file cannot grow by `bytes` from its present size and keep enough
  // to be ended. Where a file system cannot reserve (EOPNOTSUPP), it returns and HDF5 will find
  // out.
  void reserve(std::uint64_t bytes);
  void release_unused();  // gives back what was reserved beyond the end of the file
  std::uint64_t file_size() const;
  // True if it is the file that has this name, as far as can be known: by its inode or, where inode
  // numbers do not last, by its size and time of change. Of a file that no other process changes.
  bool is_at(const std::string& path) const;
  bool is_removed() const;  // true if it has no name at all

  // Marks the file as being written, until this object or the process dies.
  void mark_live();

 private:
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t max_size_ = 0;
  std::uint64_t used_bytes_ = 0;
  std::uint64_t reserved_end_ = 0;
};

// True if a live process, this one included, holds the mark.
bool is_being_written(const std::string& path);

}  // namespace telens::record
