#include "features/record/held_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/base/error.h"

namespace telens::record {

HeldFile::HeldFile(const std::string& path)
    // O_NONBLOCK: a pipe of that name must not make a reader wait.
    : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0) raise<RecordError>("{}: {}", path, std::strerror(errno));
}

HeldFile::~HeldFile() { ::close(descriptor_); }

std::uint64_t HeldFile::size() const {
  struct stat status {};
  return ::fstat(descriptor_, &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
}

bool HeldFile::is_other_than(hid_t file) const {
  void* descriptor = nullptr;  // of the driver that opens run files
  if (H5Fget_vfd_handle(file, H5P_DEFAULT, &descriptor) < 0 || descriptor == nullptr) return false;
  struct stat own {};
  struct stat opened {};
  if (::fstat(descriptor_, &own) != 0) return false;
  if (::fstat(*static_cast<const int*>(descriptor), &opened) != 0) return false;
  return own.st_dev != opened.st_dev || own.st_ino != opened.st_ino;
}

}  // namespace telens::record
