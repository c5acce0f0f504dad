#include "record/disk_space.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "core/base/error.h"

namespace telens::record {
namespace {

constexpr double kNanosecond = 1e-9;  // in seconds
constexpr std::uint64_t kReserveStep = 256 << 10;

std::string read_boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

}  // namespace

std::uint64_t size_of(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
}

double modification_time(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return 0;
  return static_cast<double>(status.st_mtim.tv_sec) +
         kNanosecond * static_cast<double>(status.st_mtim.tv_nsec);
}

std::optional<double> creation_time(const std::string& path) {
  struct statx status {};
  if (::statx(AT_FDCWD, path.c_str(), 0, STATX_BTIME, &status) != 0) return std::nullopt;
  if ((status.stx_mask & STATX_BTIME) == 0) return std::nullopt;
  return static_cast<double>(status.stx_btime.tv_sec) + kNanosecond * status.stx_btime.tv_nsec;
}

bool is_on_local_file_system(const std::string& path) {
  // File systems by the magic numbers of statfs(2).
  constexpr std::array<std::uint64_t, 9> kLocal{
      0xef53,      // ext2, ext3, ext4
      0x58465342,  // XFS
      0x9123683e,  // Btrfs
      0x01021994,  // tmpfs
      0x794c7630,  // overlayfs, the root of containers
      0xf2f52010,  // F2FS
      0x2fc12fc1,  // ZFS
      0xca451a4e,  // bcachefs
      0x858458f6,  // ramfs
  };
  struct statfs status {};
  if (::statfs(path.c_str(), &status) != 0) return false;
  constexpr std::uint64_t kLow = 0xffffffff;  // f_type is signed, and shorter on some machines
  return std::ranges::find(kLocal, static_cast<std::uint64_t>(status.f_type) & kLow) !=
         kLocal.end();
}

std::string get_boot_id() {
  static const std::string id = read_boot_id();
  return id;
}

bool has_lost_name(int descriptor, const std::string& path) {
  struct stat opened {};
  struct stat named {};
  if (::fstat(descriptor, &opened) != 0) return false;
  if (::stat(path.c_str(), &named) != 0) return errno == ENOENT || errno == ENOTDIR;
  return opened.st_dev != named.st_dev || opened.st_ino != named.st_ino;
}

MaxSizeReached::MaxSizeReached(std::uint64_t max_size)
    : DiskFull(fmt::format("the recording's max_size of {} bytes is reached", max_size)) {}

DiskSpace::DiskSpace(const std::string& path, std::uint64_t max_size, std::uint64_t used_bytes)
    : path_(path),
      descriptor_(::open(path.c_str(), O_RDWR | O_CLOEXEC)),
      max_size_(max_size),
      used_bytes_(used_bytes) {
  if (descriptor_ < 0) raise<RecordError>("{}: {}", path, std::strerror(errno));
}

DiskSpace::~DiskSpace() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

DiskSpace::DiskSpace(DiskSpace&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      max_size_(other.max_size_),
      used_bytes_(other.used_bytes_),
      reserved_end_(other.reserved_end_) {}

DiskSpace& DiskSpace::operator=(DiskSpace&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(max_size_, other.max_size_);
  std::swap(used_bytes_, other.used_bytes_);
  std::swap(reserved_end_, other.reserved_end_);
  return *this;
}

void DiskSpace::reserve(std::uint64_t bytes) {
  const std::uint64_t needed = file_size() + bytes + kEndReserve;
  if (needed <= reserved_end_) return;
  if (max_size_ > 0 && used_bytes_ + needed > max_size_) throw MaxSizeReached(max_size_);
  rlimit limit{};
  // Growing a file beyond this limit raises SIGXFSZ, which would end the training.
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      needed > limit.rlim_cur) {
    raise<DiskFull>("the limit on file sizes (ulimit -f) of {} bytes is reached",
                    static_cast<std::uint64_t>(limit.rlim_cur));
  }
  const std::uint64_t end = needed + kReserveStep;
  const auto begin = std::max(reserved_end_, file_size());
  if (::fallocate(descriptor_, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                  static_cast<off_t>(end - begin)) == 0) {
    reserved_end_ = end;
    return;
  }
  const int cause = errno;
  if (cause == ENOSPC || cause == EDQUOT || cause == EFBIG) {
    raise<DiskFull>("{}", std::strerror(cause));
  }
}

void DiskSpace::release_unused() {
  // Truncating to the current size releases reserved blocks on ext4, xfs, btrfs and tmpfs.
  if (reserved_end_ == 0 || ::ftruncate(descriptor_, static_cast<off_t>(file_size())) == 0) {
    reserved_end_ = 0;
  }
}

std::uint64_t DiskSpace::file_size() const {
  struct stat status {};
  return ::fstat(descriptor_, &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
}

bool DiskSpace::has_name(const std::string& path) const {
  if (!has_lost_name(descriptor_, path)) return true;
  struct stat own {};
  struct stat named {};
  if (::fstat(descriptor_, &own) != 0 || ::stat(path.c_str(), &named) != 0) return false;
  // If inode numbers are not stable, every file seems to have lost its name. A file with the same
  // size that was changed in the same nanosecond is this file.
  return own.st_nlink > 0 && own.st_size == named.st_size &&
         own.st_mtim.tv_sec == named.st_mtim.tv_sec && own.st_mtim.tv_nsec == named.st_mtim.tv_nsec;
}

bool DiskSpace::is_removed() const {
  struct stat own {};
  return ::fstat(descriptor_, &own) == 0 && own.st_nlink == 0;
}

void DiskSpace::mark_live() {
  struct flock lock = make_lock(Mark::live, F_RDLCK);
  // If the file system does not support locks, the file is unmarked, and repair does not detect a
  // live writer.
  static_cast<void>(::fcntl(descriptor_, F_OFD_SETLK, &lock));
}

bool is_being_written(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not block the reader.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return false;
  struct flock lock = make_lock(Mark::live, F_WRLCK);
  const bool asked = ::fcntl(descriptor, F_OFD_GETLK, &lock) == 0;
  ::close(descriptor);
  return asked && lock.l_type != F_UNLCK;
}

}  // namespace telens::record
