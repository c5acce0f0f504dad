// Reads a file of unknown size: /dev/zero has no end.
#pragma once

#include <cstddef>
#include <istream>
#include <optional>
#include <string>

namespace telens {

// The largest text that the command and a session accept as a configuration or a list of names.
inline constexpr std::size_t kMostTextBytes = 64 << 20;

// Reads the stream to its end. Returns nullopt if it holds more than `most` bytes.
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

}  // namespace telens
