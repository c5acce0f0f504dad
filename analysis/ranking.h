// The origin before its consequences.
#pragma once

#include <vector>

#include "analysis/diagnosis_finding.h"
#include "analysis/rule.h"

namespace telens::analysis {

// Findings of all rules, most probable origins first: what is trusted more first, then by
// iteration, by stage, by turn (forward through the layers, then backward) and by rank. What may
// follow from another finding lies under it.
std::vector<Ranked> rank(std::vector<Finding> findings);

}  // namespace telens::analysis
