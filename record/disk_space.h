// The file system's view of a run file: size, name, locks, and disk space that is reserved in
// advance.
#pragma once

#include <fcntl.h>
#include <cstdint>
#include <optional>
#include <string>

#include "core/base/error.h"

namespace telens::record {

// Returns 0 if the file does not exist.
std::uint64_t size_of(const std::string& path);
double modification_time(const std::string& path);  // seconds since 1970
// Returns nullopt if the file system does not record when it created a file.
std::optional<double> creation_time(const std::string& path);  // seconds since 1970

// Returns true if the file is on a disk or in memory of this machine, so that all of its processes
// see each other's locks, those in containers included. Returns false for unknown file systems.
bool is_on_local_file_system(const std::string& path);

// Returns the id of the kernel's current boot, which all containers of a machine have in common; ""
// if unknown.
TELENS_EXPORT std::string get_boot_id();

// Returns true if the open file no longer has this name: it was removed or replaced. Returns false
// if the file system does not answer.
bool has_lost_name(int descriptor, const std::string& path);

// How often to reopen a file that lost its name. On some FUSE and network file systems inode
// numbers change, so that every file seems to have lost its name.
inline constexpr int kMaxOpenTries = 16;

// Locks on single bytes far beyond the end of a run file, which inform other processes about its
// use. They are open file description locks, which end with their process and do not interact with
// HDF5's flock on the whole file.

enum class Mark : off_t {
  live = static_cast<off_t>(1) << 62,  // a process writes the file
  rewritten,                           // a process writes a replacement
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

// Reserves disk space for a growing file, so that a full disk is found before HDF5 starts a write
// and the file can still be closed. Also holds the mark of a file that is being written.

// The system failed to create, read or write a file. The message ends with the system's text.
class SystemError : public RecordError {
 public:
  using RecordError::RecordError;
};

// Thrown before anything is written.
class DiskFull : public RecordError {
 public:
  using RecordError::RecordError;
};

// The disk has room, but max_size does not allow to use it.
class MaxSizeReached final : public DiskFull {
 public:
  explicit MaxSizeReached(std::uint64_t max_size);
};

// The maximum that ending a file adds: last chunks, final names and rows, and their indexes.
inline constexpr std::uint64_t kEndReserve = 256 << 10;

class DiskSpace {
 public:
  DiskSpace() = default;
  // The file may grow to max_size - `used_bytes`, where `used_bytes` is the size of the other
  // files. 0 means no limit.
  explicit DiskSpace(const std::string& path, std::uint64_t max_size = 0,
                     std::uint64_t used_bytes = 0);
  ~DiskSpace();
  DiskSpace(DiskSpace&& other) noexcept;
  DiskSpace& operator=(DiskSpace&& other) noexcept;

  // Throws DiskFull if the file cannot grow by `bytes` and still be ended. Does nothing if the file
  // system cannot reserve space (EOPNOTSUPP); HDF5 then reports a full disk.
  void reserve(std::uint64_t bytes);
  void release_unused();  // releases space beyond the end of the file
  std::uint64_t file_size() const;
  // Returns true if `path` is this file: the inode matches or, if inode numbers are not stable, the
  // size and modification time do. For files that no other process changes.
  bool has_name(const std::string& path) const;
  bool is_removed() const;  // true if the file was unlinked

  // Marks the file as being written until this object or the process ends.
  void mark_live();

 private:
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t max_size_ = 0;
  std::uint64_t used_bytes_ = 0;
  std::uint64_t reserved_end_ = 0;
};

// Returns true if a live process, including this one, holds the mark.
bool is_being_written(const std::string& path);

}  // namespace telens::record
