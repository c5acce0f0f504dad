#include "tests/record/disk_fault.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

using telens::testing::Fault;
using telens::testing::fault;

namespace telens::testing {
Fault fault;
}  // namespace telens::testing

namespace {

// The kernel copies a write into its cache page by page. A kill stops between two pages.
constexpr size_t kPage = 4096;
size_t whole_pages_of_a_half(size_t count, off_t offset) {
  const size_t in_first_page = kPage - static_cast<size_t>(offset) % kPage;
  if (count <= in_first_page) return 0;
  return in_first_page + (count - in_first_page) / kPage / 2 * kPage;
}

}  // namespace

// HDF5 and TELens call pwrite and pread; these definitions take precedence over libc's.
extern "C" ssize_t pwrite(int file, const void* bytes, size_t count, off_t offset) {
  if (fault.kind != Fault::none && --fault.writes_left < 0) {
    if (fault.kind == Fault::disk_full) {
      errno = ENOSPC;
      return -1;
    }
    if (fault.kind == Fault::one_error || fault.kind == Fault::errors) {
      if (fault.kind == Fault::one_error) fault.kind = Fault::none;
      errno = EIO;
      return -1;
    }
    ::pwrite64(file, bytes, whole_pages_of_a_half(count, offset), offset);
    ::kill(::getpid(), SIGKILL);
  }
  return ::pwrite64(file, bytes, count, offset);
}

extern "C" ssize_t pread(int file, void* bytes, size_t count, off_t offset) {
  const long bad = fault.bad_byte;
  if (bad >= offset && bad - offset < static_cast<long>(count)) {
    errno = EIO;
    return -1;
  }
  return ::pread64(file, bytes, count, offset);
}

extern "C" int fsync(int file) {
  if (!fault.in_syncs) return static_cast<int>(::syscall(SYS_fsync, file));
  errno = EIO;
  return -1;
}
