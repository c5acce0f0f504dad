// Text for people and shells: safe output of any bytes, lists of ranks, shell words. No LibTorch.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/error.h"

namespace telens {

// Classes of ASCII characters, independent of the locale.
constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
constexpr bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Returns the length in bytes of the UTF-8 character that begins at `at`, or 0 if none does
// (RFC 3629: no overlong encodings, no surrogates, nothing above U+10FFFF).
std::size_t utf8_length(std::string_view text, std::size_t at);

// Receives one UTF-8 character; `code` is nullopt for an invalid byte.
using UseCharacter = std::function<void(std::string_view bytes, std::optional<char32_t> code)>;
void for_each_character(std::string_view text, const UseCharacter& use);

// True for control characters, characters that change the writing direction or have no width, and
// characters that XML 1.0 forbids.
bool is_unseen(char32_t code);

// Returns the text as one line of valid UTF-8, safe for a terminal, a log and XML. Invalid bytes,
// line feeds and other characters with is_unseen() become escapes such as \n, \x1b and \u202e.
TELENS_EXPORT std::string printable(std::string_view text);

// Like printable() for multi-line text: keeps tabs and line feeds, and appends `indent` to each
// line feed.
TELENS_EXPORT std::string printable_lines(std::string_view text, std::string_view indent = {});

// Returns the terminal columns of printable text, one per character.
std::size_t get_columns(std::string_view printable_text);

// Returns a list of ranks: "1", "1, 2". Lists the first eight, then " and 3 more".
std::string format_ranks(std::span<const int> ranks);

// Returns format_ranks() with its noun: "rank 1", "ranks 1, 2".
std::string describe_ranks(std::span<const int> ranks);

// Returns the text as one word of a POSIX shell, in single quotes if it needs them. Use it for
// commands that the user can copy: names of runs and folders may contain any character.
std::string shell_word(const std::string& text);

}  // namespace telens
