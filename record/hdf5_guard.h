// A file that is held open while it is checked and opened by HDF5: see descriptor_driver.h.
#pragma once

#include <sys/stat.h>
#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "record/hdf5.h"

namespace telens::record {

class HeldFile {
 public:
  // Throws RecordError: it cannot be opened.
  explicit HeldFile(const std::string& path);
  ~HeldFile();
  HeldFile(const HeldFile&) = delete;
  HeldFile& operator=(const HeldFile&) = delete;

  int descriptor() const { return descriptor_; }
  std::uint64_t size() const;

 private:
  int descriptor_;
};

// The first bytes of an HDF5 file, looked at before HDF5 is given the rest.

// Checks the open file. Throws RecordError for what is no regular file, no HDF5 file, or one in a
// format that TELens does not write. The metadata of older formats has no checksums, so that HDF5
// takes damaged numbers in it for lengths and offsets; extensions may name drivers that open other
// files.
void check_superblock(int file, const std::string& path);

// How HDF5 reads a run file: through a file driver that knows an open descriptor and no name, and
// that no length in the file makes longer than the file.

// Has H5Fopen with these file access properties read the open file `descriptor`, whatever name it
// is given. So what was checked is what is read, also where the name goes to another file
// meanwhile. The file that is opened keeps a descriptor of its own.
//
// A read that is longer than the file, and one of metadata that is beyond its limits
// (metadata_limits.h), make HDF5's call fail. The driver that HDF5 comes with gives zeros behind
// the end of a file, which under H5F_ACC_SWMR_READ is no limit: a block of metadata whose length
// was changed would fill the memory.
void set_descriptor_driver(hid_t access, int descriptor);

// The files whose layout this process has checked (run_layout.h), so that a reader that opens them
// again and again, as one of many ranks does, need not go through all their objects each time.

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

// Opens a run file for reading and checks that it is one and not newer.
struct OpenRunFile {
  hdf5::Handle file;
  std::vector<hdf5::Handle> datasets;  // that the check has opened, or none
};
OpenRunFile open_run_file(const std::string& path);

}  // namespace telens::record
