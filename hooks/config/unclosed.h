// Finds unclosed brackets and quotations in a YAML text. A parser reads to the end of the text, or
// as far as it can, and then reports only the place where it stopped.
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

// Returns the innermost unclosed bracket among the one at `begin` and those inside it. Returns
// nullopt if all are closed, or if `begin` is not at a bracket.
std::optional<Unclosed> find_unclosed_bracket(std::string_view yaml, std::size_t begin);

// Returns true if a quotation begins at `begin` and is not closed until the end of the text.
bool is_unclosed_quote(std::string_view yaml, std::size_t begin);

}  // namespace telens::config
