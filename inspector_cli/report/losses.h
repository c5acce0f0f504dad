// The losses that a program gave to debug.step(loss).
#pragma once

#include <vector>

#include "analysis/series.h"
#include "record/run_reader.h"

namespace telens::cli {

// Takes the lowest rank that has any; one point an iteration, in their order. Throws RecordError.
std::vector<diagnosis::Point> read_losses(const record::RunReader& run);

}  // namespace telens::cli
