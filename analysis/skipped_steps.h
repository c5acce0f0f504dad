// Steps that a loss scaler skipped while it looked for its scale.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <string_view>

#include "analysis/facts.h"

namespace telens::analysis {

// The statistics that it is seen by.
inline constexpr std::array<std::string_view, 3> kOfSkippedSteps{"nonfinite", "nan", "l2_norm"};

// Iterations in which a loss scaler found its scale too large: gradients alone are infinite, and
// the optimizer's step is skipped. NaNs come of the first infinities, as their differences, in the
// gradients behind; a first one that holds NaNs itself is no overflow. An infinite norm of
// gradients that are finite as far as recorded counts only if a weight is the same in the next
// iteration, or the program records its loss scale.
std::set<std::int64_t> steps_skipped_by_loss_scaler(const Facts& facts);

}  // namespace telens::analysis
