// Files, paths and descriptors.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <istream>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace telens {

// Returns a path that stays valid if the program changes its working directory. "" and "." are the
// working directory. Returns `path` unchanged if the working directory was deleted.
inline std::string absolute_path(const std::string& path) {
  std::error_code error;
  const bool is_here = path.empty() || path == ".";
  const auto absolute =
      is_here ? std::filesystem::current_path(error) : std::filesystem::absolute(path, error);
  return error ? path : absolute.string();
}

// The largest text that the command and a session accept as a configuration or a list of names.
inline constexpr std::size_t kMostTextBytes = 64 << 20;

// Reads the stream to its end. Returns nullopt if it holds more than `most` bytes, for example
// because /dev/zero never ends.
inline std::optional<std::string> read_bounded(std::istream& stream, std::size_t most) {
  std::string text;
  constexpr std::size_t kPiece = 1 << 16;
  while (stream) {
    const std::size_t before = text.size();
    text.resize(before + kPiece);
    stream.read(text.data() + before, kPiece);
    text.resize(before + static_cast<std::size_t>(stream.gcount()));
    if (text.size() > most) return std::nullopt;
  }
  return text;
}

// Writes all bytes, in several parts if necessary. Returns 0 or errno.
inline int write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) return errno;
    if (written > 0) bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

}  // namespace telens
