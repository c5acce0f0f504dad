// Checks that a file is a text file. A user may have named a checkpoint, a run file or an archive
// instead.
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

// Returns the first byte that cannot occur in a UTF-8 text: an invalid byte, or a control character
// other than tab and line ends.
std::optional<BadByte> first_bad_byte(std::string_view text);

// Detected by the byte order mark, or by the zeros of the first letters (YAML 1.2, 5.2).
bool is_utf16_or_utf32(std::string_view text);

}  // namespace telens::config
