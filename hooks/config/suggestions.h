// The names that a person probably meant.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace telens::config {

// Insertions, deletions, substitutions and swaps of neighbors that turn a into b (optimal string
// alignment); letters of either case are equal.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The names close enough to be what was meant (at most a third of the letters differ, or one
// contains the other), at most `count`: first those that `written` abbreviates, then the nearest.
std::vector<std::string> nearest_names(std::string_view written, std::span<const std::string> names,
                                       std::size_t count = 3);

// " (did you mean 'quant_format'?)", or nothing where no name is near.
std::string suggestion(std::string_view written, std::span<const std::string> names);

// "'a', 'b', 'c'".
std::string quoted_list(std::span<const std::string> names);

}  // namespace telens::config
