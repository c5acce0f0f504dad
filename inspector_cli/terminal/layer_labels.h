// Names of layers where there is little room: what all have in common is told once, and the number
// of a layer is never left out.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace telens::cli {

// The beginning and the end that all names share, in whole parts between dots; each name keeps at
// least one part, and all from the first one with a digit to the last.
struct CommonParts {
  std::string prefix;  // with its last dot
  std::string suffix;  // with its first dot

  bool any() const { return !prefix.empty() || !suffix.empty(); }
  // A name, or a label that begins with one and goes on behind a blank, without them.
  std::string without(std::string_view label) const;
  // "layers are named model.layers.<...>.self_attn"
  std::string sentence() const;
};
CommonParts common_parts(std::span<const std::string> names);

// Printable text of at most `longest` columns, if that is possible without leaving out a part with
// a digit: parts without any are cut, the longest first.
std::string shortened(std::string_view label, std::size_t longest);

// Printable text of at most `longest` columns: its beginning and its end, with ~ for what is
// between.
std::string cut_in_the_middle(std::string_view text, std::size_t longest);

}  // namespace telens::cli
