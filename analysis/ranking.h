// The origin before its consequences.
#pragma once

#include <vector>

#include "analysis/diagnosis_finding.h"
#include "analysis/rule.h"

namespace telens::analysis {

// Sorts the findings of every rule by confidence, iteration, stage, order in the step and rank, and
// moves likely consequences below their origin.
std::vector<Ranked> rank(std::vector<Finding> findings);

}  // namespace telens::analysis
