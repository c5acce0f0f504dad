// Opens run files from untrusted sources. Every check runs before HDF5 or the reader uses the
// bytes: the superblock, the layout (check_run_layout) and each block of metadata that HDF5 reads
// (metadata_check.h).
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

class OpenFile {
 public:
  // Opens a file for reading. Throws RecordError if the file cannot be opened.
  explicit OpenFile(const std::string& path);
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int descriptor() const { return descriptor_; }
  std::uint64_t size() const;

 private:
  int descriptor_;
};

// Checks the first bytes of an open file. Throws RecordError if it is not a regular file, not an
// HDF5 file, or in a format that TELens does not write. Metadata of older formats lacks checksums,
// so HDF5 would use damaged numbers as lengths and offsets. Superblock extensions may name drivers
// that open other files.
void check_superblock(int file, const std::string& path);

// The file driver through which HDF5 reads run files. It uses an open descriptor, not a path, and
// never reads beyond the end of the file.

// Makes H5Fopen with these file access properties read the open file `descriptor`, regardless of
// the path argument. The file that was checked is then the file that is read, even if the path is
// replaced meanwhile. The opened HDF5 file has its own copy of the descriptor.
//
// HDF5 calls fail for reads longer than the file and for metadata that violates its limits
// (metadata_check.h). HDF5's default driver returns zeros beyond the end of a file, and
// H5F_ACC_SWMR_READ does not limit reads: a metadata block with a damaged length would fill the
// memory.
void set_descriptor_driver(hid_t access, int descriptor);

// The files whose layout this process has checked. A reader that opens many files repeatedly then
// skips the check of all their objects.

// The identity and state of a file. Any write changes it.
class FileState {
 public:
  // Returns nullopt if the state is unknown, or if the file changed so recently that another change
  // could have the same time stamp.
  static std::optional<FileState> settled(int descriptor);

  auto operator<=>(const FileState&) const = default;

 private:
  explicit FileState(const struct stat& status);

  using Time = std::array<std::int64_t, 2>;  // seconds since 1970 and nanoseconds
  static Time parts(const timespec& time) { return {time.tv_sec, time.tv_nsec}; }

  std::uint64_t device_, inode_, size_;
  Time modified_, changed_;
};

// Requires a Lock.
class CheckedFiles {
 public:
  bool contains(const std::optional<FileState>& file) const {
    return file && files_.contains(*file);
  }
  // `before` and `after` are the states of the file before and after its check.
  void add(const std::optional<FileState>& before, const std::optional<FileState>& after);

 private:
  std::set<FileState> files_;
};

CheckedFiles& checked_files();

// Opens a run file for reading. Throws RecordError if it is not a run file, is damaged, or has a
// newer schema version.
struct OpenRunFile {
  hdf5::Handle file;
  std::vector<hdf5::Handle> datasets;  // opened by the check; empty if the check was skipped
};
OpenRunFile open_run_file(const std::string& path);

// The maximum expansion of a deflate stream (zlib's manual, "Maximum Compression Ratio").
inline constexpr std::uint64_t kMaxExpansion = 1032;
// Four times the largest chunk that TELens writes.
inline constexpr std::uint64_t kMaxChunkRows = 16384;
// A quarter of the smallest packed chunk that TELens writes: a reader opens each chunk separately.
inline constexpr std::uint64_t kMinPackedRows = 256;

// Throws RecordError, with the object, the expected and the actual property, unless the file has
// exactly the objects in docs/run_file.md, each with its kind, type, shape and storage. Data that
// is read or repaired afterwards is then never in another file (external links, external storage,
// virtual datasets), never passes through unknown filters, never has two names, and is never larger
// than a file of `file_bytes` can hold. Reads no data. Returns the open datasets.
std::vector<hdf5::Handle> check_run_layout(hid_t file, std::int64_t schema_version,
                                           std::uint64_t file_bytes);

}  // namespace telens::record
