#include "record/hdf5_guard.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "record/disk_space.h"
#include "record/metadata_check.h"
#include "record/run_schema.h"

#if H5_VERSION_GE(1, 14, 0)
#include <H5FDdevelop.h>
#endif

namespace telens::record {

OpenFile::OpenFile(const std::string& path)
    // O_NONBLOCK: opening a pipe must not block the reader.
    : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0) raise<RecordError>("{}: {}", path, std::strerror(errno));
}

OpenFile::~OpenFile() { ::close(descriptor_); }

std::uint64_t OpenFile::size() const {
  struct stat status {};
  return ::fstat(descriptor_, &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
}

namespace {

constexpr std::array<std::uint8_t, 8> kSignature{0x89, 'H', 'D', 'F', '\r', '\n', 0x1A, '\n'};

// Version 3 of the superblock, which SWMR requires: "HDF5 File Format Specification Version 3.0",
// II.A.
constexpr std::size_t kVersionByte = 8;
constexpr std::size_t kOffsetBytes = 9;
constexpr std::size_t kLengthBytes = 10;
constexpr std::size_t kBaseAddress = 12;
constexpr std::size_t kExtensionAddress = 20;
constexpr std::size_t kBytes = 48;
constexpr std::uint8_t kSupported = 3;
constexpr std::uint64_t kNoAddress = UINT64_MAX;

using Superblock = std::array<std::uint8_t, kBytes>;

std::uint64_t number_at(const Superblock& bytes, std::size_t offset) {
  std::uint64_t number = 0;
  std::memcpy(&number, bytes.data() + offset, sizeof(number));
  return number;
}

Superblock read(int file, const std::string& path) {
  struct stat status {};
  if (::fstat(file, &status) != 0) raise<RecordError>("{}: {}", path, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) raise<RecordError>("{}: not a regular file", path);
  if (status.st_size == 0) raise<RecordError>("{}: an empty file, not a run file", path);
  Superblock bytes{};
  const ssize_t length = ::pread(file, bytes.data(), bytes.size(), 0);
  if (length < 0) raise<RecordError>("{}: {}", path, std::strerror(errno));
  const bool signature =
      std::ranges::equal(std::span(bytes).first<kSignature.size()>(), kSignature);
  if (!signature) raise<RecordError>("{}: not an HDF5 file", path);
  if (length < static_cast<ssize_t>(kBytes)) {
    throw RecordError(fmt::format("{}: truncated or damaged (only {} bytes)", path, length),
                      /*is_truncated=*/true);
  }
  return bytes;
}

}  // namespace

void check_superblock(int file, const std::string& path) {
  const Superblock bytes = read(file, path);
  const auto refuse = [&](const char* what, std::uint64_t expected, std::uint64_t actual) {
    raise<RecordError>(
        "{}: an HDF5 file in a format that TELens does not write: {} is {}, expected {}", path,
        what, actual, expected);
  };
  if (bytes[kVersionByte] != kSupported)
    refuse("the superblock version", kSupported, bytes[kVersionByte]);
  for (const std::size_t at : {kOffsetBytes, kLengthBytes}) {
    if (bytes[at] != sizeof(std::uint64_t)) {
      refuse("the size of addresses", sizeof(std::uint64_t), bytes[at]);
    }
  }
  if (const auto base = number_at(bytes, kBaseAddress); base != 0)
    refuse("the base address", 0, base);
  if (const auto extension = number_at(bytes, kExtensionAddress); extension != kNoAddress) {
    refuse("the address of the superblock extension", kNoAddress, extension);
  }
}

namespace {

constexpr herr_t kFine = 0;
constexpr herr_t kFailed = -1;

// The struct that H5Pset_driver copies into the property list.
struct DriverInfo {
  int descriptor;
};

// HDF5 uses only the first member.
struct DescriptorFile {
  H5FD_t head{};
  int descriptor = -1;
  haddr_t end_of_allocation = 0;
  MetadataCheck metadata;
};

DescriptorFile& own(H5FD_t* file) { return *reinterpret_cast<DescriptorFile*>(file); }
const DescriptorFile& own(const H5FD_t* file) {
  return *reinterpret_cast<const DescriptorFile*>(file);
}

// Reports an error for hdf5::last_error().
herr_t fail(const char* why) {
  H5Epush2(H5E_DEFAULT, __FILE__, "descriptor_driver", __LINE__, H5E_ERR_CLS, H5E_IO, H5E_READERROR,
           "%s", why);
  return kFailed;
}

// Reports an error for hdf5::last_system_error().
void note_system_error(const char* cause) {
  H5Epush2(H5E_DEFAULT, __FILE__, "descriptor_driver", __LINE__, H5E_ERR_CLS, H5E_IO, H5E_SYSERRSTR,
           "%s", cause);
}

std::uint64_t size_of(const DescriptorFile& file) {
  struct stat status {};
  return ::fstat(file.descriptor, &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
}

H5FD_t* open_file(const char* /*name*/, unsigned flags, hid_t access, haddr_t /*most*/) {
  if ((flags & H5F_ACC_RDWR) != 0) {
    fail("this driver is read-only");
    return nullptr;
  }
  const auto* info = static_cast<const DriverInfo*>(H5Pget_driver_info(access));
  auto file = std::unique_ptr<DescriptorFile>(new (std::nothrow) DescriptorFile);
  if (info == nullptr || file == nullptr) return nullptr;
  file->descriptor = ::fcntl(info->descriptor, F_DUPFD_CLOEXEC, 0);
  if (file->descriptor < 0) {
    note_system_error(std::strerror(errno));
    return nullptr;
  }
  return &file.release()->head;
}

herr_t close_file(H5FD_t* file) {
  const std::unique_ptr<DescriptorFile> closed(&own(file));
  return ::close(closed->descriptor) == 0 ? kFine : fail(std::strerror(errno));
}

herr_t get_features(const H5FD_t* /*file*/, unsigned long* features) {
  *features = H5FD_FEAT_DATA_SIEVE | H5FD_FEAT_SUPPORTS_SWMR_IO;
  return kFine;
}

haddr_t get_end_of_allocation(const H5FD_t* file, H5FD_mem_t /*type*/) {
  return own(file).end_of_allocation;
}

herr_t set_end_of_allocation(H5FD_t* file, H5FD_mem_t /*type*/, haddr_t end) {
  own(file).end_of_allocation = end;
  return kFine;
}

haddr_t get_end_of_file(const H5FD_t* file, H5FD_mem_t /*type*/) { return size_of(own(file)); }

// Returns zeros beyond the end, which HDF5 expects: it reads ahead before it knows the length of a
// block.
herr_t read_bytes(H5FD_t* file, H5FD_mem_t type, hid_t /*transfer*/, haddr_t begin,
                  std::size_t count, void* buffer) {
  if (count > size_of(own(file))) return fail("a block longer than the file");
  auto* bytes = static_cast<char*>(buffer);
  const std::span<const char> block(bytes, count);
  const haddr_t address = begin;
  while (count > 0) {
    const ssize_t got = ::pread(own(file).descriptor, bytes, count, static_cast<off_t>(begin));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail(std::strerror(errno));
    if (got == 0) break;
    bytes += got;
    begin += static_cast<haddr_t>(got);
    count -= static_cast<std::size_t>(got);
  }
  std::memset(bytes, 0, count);
  if (type == H5FD_MEM_DRAW) return kFine;
  try {
    auto refused = find_size_error(block);
    if (!refused) refused = own(file).metadata.refusal(address, block);
    return refused ? fail(refused->c_str()) : kFine;
  } catch (const std::bad_alloc&) {  // HDF5 is C: no exception may pass through it
    return fail("out of memory");
  }
}

herr_t write_nothing(H5FD_t* /*file*/, H5FD_mem_t /*type*/, hid_t /*transfer*/, haddr_t /*begin*/,
                     std::size_t /*count*/, const void* /*buffer*/) {
  return fail("this driver is read-only");
}

// Like HDF5's own driver: rejects a file that another program is changing in place.
herr_t lock_file(H5FD_t* file, hbool_t for_writing) {
  const int operation = (for_writing ? LOCK_EX : LOCK_SH) | LOCK_NB;
  const bool locked = ::flock(own(file).descriptor, operation) == 0;
  if (locked || errno == ENOSYS) return kFine;
  const bool is_held = errno == EWOULDBLOCK;
  note_system_error(is_held ? "another program is writing the file" : std::strerror(errno));
  return kFailed;
}

herr_t unlock_file(H5FD_t* file) {
  const bool unlocked = ::flock(own(file).descriptor, LOCK_UN) == 0;
  return unlocked || errno == ENOSYS ? kFine : fail(std::strerror(errno));
}

// If `cmp` is not set, two openings of a file share nothing, so that each one sees the current
// state.
hid_t register_driver() {
  H5FD_class_t driver{};
#if H5_VERSION_GE(1, 14, 0)
  // lower values are reserved for registered drivers
  constexpr H5FD_class_value_t kFirstOfPrograms = 512;
  driver.version = H5FD_CLASS_VERSION;
  driver.value = kFirstOfPrograms;
#endif
  driver.name = "telens descriptor";
  driver.maxaddr = std::numeric_limits<off_t>::max();
  driver.fc_degree = H5F_CLOSE_WEAK;
  driver.fapl_size = sizeof(DriverInfo);
  driver.open = open_file;
  driver.close = close_file;
  driver.query = get_features;
  driver.get_eoa = get_end_of_allocation;
  driver.set_eoa = set_end_of_allocation;
  driver.get_eof = get_end_of_file;
  driver.read = read_bytes;
  driver.write = write_nothing;
  driver.lock = lock_file;
  driver.unlock = unlock_file;
  return H5FDregister(&driver);
}

}  // namespace

void set_descriptor_driver(hid_t access, int descriptor) {
  const hdf5::Lock lock;
  static hid_t driver = H5I_INVALID_HID;
  // Registers the driver again if the program has closed the library (H5close).
  if (H5Iget_type(driver) != H5I_VFL) driver = register_driver();
  const DriverInfo info{descriptor};
  hdf5::check(H5Pset_driver(access, driver, &info), "cannot set how a run file is read");
}

namespace {

// The resolution of time stamps is 4 ms on Linux and up to 2 s on FAT.
constexpr std::time_t kSettledAfter = 3;  // seconds

constexpr std::size_t kMaxFiles = 1 << 16;

}  // namespace

FileState::FileState(const struct stat& status)
    : device_(status.st_dev),
      inode_(status.st_ino),
      size_(static_cast<std::uint64_t>(status.st_size)),
      modified_(parts(status.st_mtim)),
      changed_(parts(status.st_ctim)) {}

// Also uses the time of the last inode change, which no program can set.
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
  if (files_.size() >= kMaxFiles) files_.clear();
  files_.insert(*after);
}

CheckedFiles& checked_files() {
  static auto* const files = new CheckedFiles;  // outlives readers destroyed at exit
  return *files;
}

namespace {

// Calls read() and adds the file's name to its RecordError.
template <typename Read>
auto with_file_name(const std::string& path, Read read) {
  try {
    return read();
  } catch (const RecordError& error) {
    raise<RecordError>("{}: damaged, or changed by another program ({})", path, error.what());
  }
}

// Checks that the file is a run file. Returns its schema version.
std::int64_t check_attributes(hid_t file, const std::string& path) {
  const bool is_ours = with_file_name(path, [&] {
    return has_attribute(file, "schema_version") && has_attribute(file, "telens_version");
  });
  if (!is_ours) {
    raise<RecordError>("{}: an HDF5 file, but not a run file of TELens", path);
  }
  const auto [version, telens] = with_file_name(path, [&] {
    return std::pair(read_integer(file, "schema_version", 1, INT64_MAX),
                     read_text(file, "telens_version"));
  });
  if (version > kSchemaVersion) {
    raise<RecordError>(
        "{}: written by telens {} with schema version {}; this telens reads up to {}: update it",
        path, telens, version, kSchemaVersion);
  }
  return version;
}

hdf5::Handle open_hdf5(const OpenFile& opened, const std::string& path) {
  const auto properties = hdf5::checked(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, path);
  H5Pset_fclose_degree(properties, H5F_CLOSE_STRONG);
  set_descriptor_driver(properties, opened.descriptor());
  const bool use_locks = true;
  const bool ignore_where_unsupported = true;
  H5Pset_file_locking(properties, use_locks, ignore_where_unsupported);
  // How often HDF5 rereads metadata that a live writer is changing. The pause starts at 1 ns and
  // doubles. HDF5's default of 100 would practically never return for a damaged file; 24 take 17
  // ms.
  hdf5::check(H5Pset_metadata_read_attempts(properties, 24), path);
  auto file =
      hdf5::Handle(H5Fopen(path.c_str(), H5F_ACC_RDONLY | H5F_ACC_SWMR_READ, properties), H5Fclose);
  if (file) return file;
  if (const auto cause = hdf5::last_system_error()) {
    raise<RecordError>("{}: cannot be read: {}", path, *cause);
  }
  throw RecordError(fmt::format("{}: truncated or damaged ({})", path, hdf5::last_error()),
                    hdf5::is_truncation_error());
}

}  // namespace

OpenRunFile open_run_file(const std::string& path) {
  const hdf5::Lock lock;
  const OpenFile opened(path);
  check_superblock(opened.descriptor(), path);
  const auto before = FileState::settled(opened.descriptor());
  if (!checked_files().contains(before)) {
    auto file = open_hdf5(opened, path);
    const std::int64_t version = check_attributes(file, path);
    auto datasets =
        with_file_name(path, [&] { return check_run_layout(file, version, opened.size()); });
    const auto after = FileState::settled(opened.descriptor());
    checked_files().add(before, after);
    if (before && before == after && !is_being_written(path)) {
      return {std::move(file), std::move(datasets)};
    }
  }
  // Opens the file again, because HDF5 caches the lengths of the tables that the check has opened,
  // and the tables of a live file grow.
  return {open_hdf5(opened, path), {}};
}

}  // namespace telens::record
