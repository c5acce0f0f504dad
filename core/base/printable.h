// Text from files, made safe to show: a layer's name may hold anything. No LibTorch.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"

namespace telens {

// Bytes of the character of UTF-8 that begins at `at`; 0 where none begins (RFC 3629: no overlong
// ones, no surrogates, none above U+10FFFF).
std::size_t utf8_length(std::string_view text, std::size_t at);

// A character of UTF-8; without a code: a byte of none.
using UseCharacter = std::function<void(std::string_view bytes, std::optional<char32_t> code)>;
void for_each_character(std::string_view text, const UseCharacter& use);

// Control characters, those that change the direction of writing or take no room, and what XML 1.0
// has no place for.
bool is_unseen(char32_t code);

// One line of text that shows what it holds, in valid UTF-8, fit for a terminal, a log and XML:
// what is_unseen, line ends among it, and bytes of no character become escapes, as \n, \x1b,
// \u202e. All else stays.
TELENS_EXPORT std::string printable(std::string_view text);

// The same for a text of several lines: tabs stay, and line feeds, each with `indent` behind it.
TELENS_EXPORT std::string printable_lines(std::string_view text, std::string_view indent = {});

// Columns of a terminal that printable text takes, one for each character.
std::size_t get_columns(std::string_view printable_text);

}  // namespace telens
