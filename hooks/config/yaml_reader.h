// Converts YAML text to a Value, like PyYAML's safe_load: YAML 1.1 scalars (yes, on, 0o17 is a
// string, 017 is 15), merge keys applied, anchors. Unlike in PyYAML, a duplicate key is a mistake.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "hooks/config/error_list.h"
#include "hooks/config/value.h"

namespace telens::config {

// Returns null for an empty text. Adds mistakes to the errors.
Value read_yaml(std::string_view yaml, std::string_view source_name, ErrorList& errors);

// Returns the value of a plain (unquoted) scalar. An integer beyond 64 bits is a string.
Value plain_scalar(std::string_view text);

// Returns true for a plain scalar that YAML reads as an integer but that exceeds 64 bits.
bool is_too_large_integer(std::string_view text);

// ---- bytes that cannot occur in a text: a user may have named a checkpoint, a run file or an
// archive

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

// ---- unclosed brackets and quotations, for which a parser reports only the place where it stopped

struct Unclosed {
  char bracket = '[';
  char expected = ']';
  std::size_t line = 1;
  std::size_t column = 1;  // in bytes, as yaml-cpp counts
};

// Returns the innermost unclosed bracket among the one at `begin` and those inside it. Returns
// nullopt if all are closed, or if `begin` is not at a bracket.
std::optional<Unclosed> find_unclosed_bracket(std::string_view yaml, std::size_t begin);

// Returns true if a quotation begins at `begin` and is not closed until the end of the text.
bool is_unclosed_quote(std::string_view yaml, std::size_t begin);

}  // namespace telens::config
