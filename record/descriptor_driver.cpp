#include "record/descriptor_driver.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <span>

#include "record/metadata_check.h"
#include "record/metadata_limits.h"

#if H5_VERSION_GE(1, 14, 0)
#include <H5FDdevelop.h>
#endif

namespace telens::record {
namespace {

constexpr herr_t kFine = 0;
constexpr herr_t kFailed = -1;

// The struct that H5Pset_driver keeps in the properties.
struct DriverInfo {
  int descriptor;
};

// HDF5 knows the first member alone.
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

// For hdf5::last_error().
herr_t fail(const char* why) {
  H5Epush2(H5E_DEFAULT, __FILE__, "descriptor_driver", __LINE__, H5E_ERR_CLS, H5E_IO, H5E_READERROR,
           "%s", why);
  return kFailed;
}

// For hdf5::last_system_error().
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
    fail("this driver only reads");
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

// Zeros behind the end, as HDF5 expects it: it reads ahead without knowing how long a block is.
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
    auto refused = find_excess(block);
    if (!refused) refused = own(file).metadata.refusal(address, block);
    return refused ? fail(refused->c_str()) : kFine;
  } catch (const std::bad_alloc&) {  // no exception may pass HDF5, which is C
    return fail("no memory is left");
  }
}

herr_t write_nothing(H5FD_t* /*file*/, H5FD_mem_t /*type*/, hid_t /*transfer*/, haddr_t /*begin*/,
                     std::size_t /*count*/, const void* /*buffer*/) {
  return fail("this driver only reads");
}

// As HDF5's own driver does: a file that another program is changing in place is not read.
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

// Without `cmp`: files that are open twice share nothing, so that each opening sees what there is.
hid_t register_driver() {
  H5FD_class_t driver{};
#if H5_VERSION_GE(1, 14, 0)
  constexpr H5FD_class_value_t kFirstOfPrograms = 512;  // those below are of registered drivers
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
  // Anew where the program has closed the library (H5close) in between.
  if (H5Iget_type(driver) != H5I_VFL) driver = register_driver();
  const DriverInfo info{descriptor};
  hdf5::check(H5Pset_driver(access, driver, &info), "cannot set how a run file is read");
}

}  // namespace telens::record
