// Exchanges by which the ranks of a world come to do the same. Every rank of a group has to
// make these calls.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/session_options.h"

namespace telens {

// Every rank's words, in the order of ranks; all ranks send equally many.
using RankWords = std::vector<std::int64_t>;
std::vector<RankWords> gather_words(const RankWords& words, c10d::ProcessGroup& group);

// Every rank's note or text, in the order of ranks.
std::vector<std::int64_t> gather_notes(std::int64_t note, c10d::ProcessGroup& group);
std::vector<std::string> gather_texts(std::string_view text, c10d::ProcessGroup& group);

}  // namespace telens
