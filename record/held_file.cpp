#include "record/held_file.h"

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

}  // namespace telens::record
