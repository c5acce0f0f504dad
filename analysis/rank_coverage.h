// Ranks that a run knows nothing of, and why its ranks could not be compared.
#pragma once

#include <string>
#include <vector>

#include "record/run_reader.h"

namespace telens::analysis {

// Sentences without a period about ranks that had no session, have no file, or ran under another
// configuration: which, since when, and what to do.
std::vector<std::string> missing_rank_notes(const record::RunReader& run);

// A clause; empty: nothing kept features from comparing the ranks that were read.
std::string why_not_compared(const record::RunReader& run);

}  // namespace telens::analysis
