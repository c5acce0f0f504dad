#pragma once

#include <span>
#include <string>

namespace telens {

// "1", "1, 2"; of more than eight the first eight, then " and 3 more".
std::string format_ranks(std::span<const int> ranks);

// "rank 1", "ranks 1, 2": the same behind the word.
std::string ranks_in_words(std::span<const int> ranks);

}  // namespace telens
