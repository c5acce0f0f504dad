// Collectives that let the ranks of a world agree on an action. Every rank of a group has to make
// these calls.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/session_options.h"

namespace telens {

// Gathers every rank's words, in rank order; all ranks send the same number of words.
using RankWords = std::vector<std::int64_t>;
std::vector<RankWords> gather_words(const RankWords& words, c10d::ProcessGroup& group);

// Gathers every rank's note or text, in rank order.
std::vector<std::int64_t> gather_notes(std::int64_t note, c10d::ProcessGroup& group);
std::vector<std::string> gather_texts(std::string_view text, c10d::ProcessGroup& group);

}  // namespace telens
