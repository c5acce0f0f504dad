// Compares the losses and other numbers of the program of two runs.
#pragma once

#include "analysis/facts.h"
#include "analysis/run_difference.h"

namespace telens::analysis {

// Compares scalars of the same name and rank and adds divergences and scalars without a counterpart
// to `result`. `spread`: a third run or nullptr, as for compare_runs(). `by_format`: the relative
// error of a gradient that formats explain; scalars except losses and learning rates may differ by
// as much.
void compare_scalars(const Facts& a, const Facts& b, const Facts* spread, double by_format,
                     RunDifference& result);

// Returns the first series of losses; nullopt if the run has none.
std::optional<Series> get_loss(const Facts& facts);

}  // namespace telens::analysis
