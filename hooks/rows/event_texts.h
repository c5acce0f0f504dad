// Words that a reader looks for in the text of an event, whose row has no column for them. The
// writer shares them, and files keep them: changed, they are not found in older ones.
#pragma once

#include <string_view>

namespace telens::record {

// Ends the text of "ranks_not_compared"; the cause stands before it.
inline constexpr std::string_view kComparedNoMore =
    "; this rank goes on recording and is compared with no other any more";

// In the text of "budget" where nothing is left out any more.
inline constexpr std::string_view kRunInAll = " run in all of their iterations";

}  // namespace telens::record
