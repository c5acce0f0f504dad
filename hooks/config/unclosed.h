// Finds what begins in a YAML text and has no end: a bracket, a quotation. A parser reads on to the
// end of the text, or as far as it can, and then names the place where it gave up.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace telens::config {

struct Unclosed {
  char bracket = '[';
  char expected = ']';
  std::size_t line = 1;
  std::size_t column = 1;  // in bytes, as yaml-cpp counts
};

// The innermost bracket without its end, among the one at `begin` and those inside it. nullopt: all
// have theirs, or at `begin` there is no bracket.
std::optional<Unclosed> find_unclosed_bracket(std::string_view yaml, std::size_t begin);

// True if a quotation begins at `begin` and goes on to the end of the text.
bool is_unclosed_quote(std::string_view yaml, std::size_t begin);

}  // namespace telens::config
