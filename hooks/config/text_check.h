// Is a file that should be a text one? A person may have named a checkpoint, a run file or an
// archive instead.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace telens::config {

struct BadByte {
  unsigned char byte = 0;
  std::size_t line = 1;
  std::size_t column = 1;  // in characters
};

// The first byte that no text in UTF-8 has: of no character, or a control character other than tab
// and line ends.
std::optional<BadByte> first_bad_byte(std::string_view text);

// By its byte order mark, or the zeros of its first letters (YAML 1.2, 5.2).
bool is_utf16_or_utf32(std::string_view text);

}  // namespace telens::config
