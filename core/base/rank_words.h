#pragma once

#include <span>
#include <string>

namespace telens {

// "rank 1", "ranks 1, 2"; of more than eight the first eight, then " and 3 more".
std::string ranks_in_words(std::span<const int> ranks);

}  // namespace telens
