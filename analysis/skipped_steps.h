// Steps that a loss scaler skipped while it looked for its scale.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <string_view>

#include "analysis/facts.h"

namespace telens::analysis {

// The statistics that it reads.
inline constexpr std::array<std::string_view, 3> kOfSkippedSteps{"nonfinite", "nan", "l2_norm"};

// Returns the iterations in which a loss scaler found its scale too large: only gradients are
// infinite, and the optimizer step is skipped. NaNs in later gradients come from differences of the
// first infinities; a first gradient that contains NaNs is not an overflow. An infinite gradient
// norm with finite recorded gradients counts only if a weight is unchanged in the next iteration,
// or if the program records its loss scale.
std::set<std::int64_t> steps_skipped_by_loss_scaler(const Facts& facts);

}  // namespace telens::analysis
