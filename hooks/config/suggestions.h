// Suggests names that the user probably meant.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace telens::config {

// Returns the number of insertions, deletions, substitutions and swaps of neighbors that turn a
// into b (optimal string alignment). Case-insensitive.
std::size_t edit_distance(std::string_view a, std::string_view b);

// Returns up to `count` similar names (at most a third of the letters differ, or one contains the
// other): first those that `written` abbreviates, then the nearest.
std::vector<std::string> nearest_names(std::string_view written, std::span<const std::string> names,
                                       std::size_t count = 3);

// Returns " (did you mean 'quant_format'?)", or "" if no name is similar.
std::string suggestion(std::string_view written, std::span<const std::string> names);

// Returns "'a', 'b', 'c'".
std::string quoted_list(std::span<const std::string> names);

}  // namespace telens::config
