// How a run and its ranks ended, in words.
#pragma once

#include <string>
#include <vector>

#include "analysis/rank_ends.h"

namespace telens::cli {

using diagnosis::ended_well;
using diagnosis::list_rank_ends;
using diagnosis::RankEnd;

// Returns a sentence without a period for each end, with its likely cause if that is the end of
// another rank: "the recording of rank 0: ended by an exception ...".
std::vector<std::string> describe(const std::vector<RankEnd>& ends, const record::RunReader& run);

// Returns one line: "The run ended with an exception in iteration 12, 2026-01-31 23:59:59 UTC:
// ValueError: ...".
std::string describe(const diagnosis::RunEnding& ending);

}  // namespace telens::cli
