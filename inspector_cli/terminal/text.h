// Text for narrow terminals: numbers, wrapped lines and shortened layer names.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace telens::cli {

// Returns "0.1235", "1e+20" or "inf"; "nan" for a NaN of either sign.
std::string number_text(double value, int significant_digits = 4);

// Splits printable text into lines of at most `width` columns. Breaks after blanks and after the
// characters ./_, of names; a longer word stays whole.
std::vector<std::string> wrapped(const std::string& text, std::size_t width);
// Like wrapped, but breaks at blanks. A word is broken only if it is wider than a line, so that
// paths can be copied.
std::vector<std::string> wrapped_at_blanks(const std::string& text, std::size_t width);

// The prefix and suffix that all layer names of a list share, in whole parts between dots. Each
// name keeps at least one part, and all parts from its first digit to its last.
struct CommonParts {
  std::string prefix;  // with its last dot
  std::string suffix;  // with its first dot

  bool any() const { return !prefix.empty() || !suffix.empty(); }
  // Removes prefix and suffix from a label: a name, optionally followed by a blank and more text.
  std::string without(std::string_view label) const;
  // Returns "layers are named model.layers.<...>.self_attn".
  std::string sentence() const;
};
CommonParts common_parts(std::span<const std::string> names);

// Shortens a printable label to at most `longest` columns if possible. Cuts the longest part first
// and never a part with a digit, so that layer numbers stay readable.
std::string shortened(std::string_view label, std::size_t longest);

// Replaces the middle of printable text by ~ if it is wider than `longest` columns.
std::string cut_in_the_middle(std::string_view text, std::size_t longest);

}  // namespace telens::cli
