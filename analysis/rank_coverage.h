// Ranks that a run knows nothing of, and why its ranks could not be compared.
#pragma once

#include <string>
#include <vector>

#include "record/run_reader.h"

namespace telens::analysis {

// Returns sentences without a period about ranks that had no session, have no file or ran with
// another configuration. Each names the ranks, the iteration since when, and what to do.
std::vector<std::string> missing_rank_notes(const record::RunReader& run);

// Returns a clause that says why features could not compare ranks, or "" if they could.
std::string why_not_compared(const record::RunReader& run);

}  // namespace telens::analysis
