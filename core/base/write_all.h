// Writing to a descriptor, which may take a part at a time.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace telens {

// Returns 0, or the error.
inline int write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) return errno;
    if (written > 0) bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

}  // namespace telens
