// Finds the first difference that rank-comparing features recorded.
#pragma once

#include <string_view>
#include <vector>

#include "analysis/rule.h"

namespace telens::analysis {

struct ComparedRanks {
  std::string_view cause;
  std::string_view statistic;  // above 0 on a rank where something is wrong
  std::string_view summary;    // a sentence without a period
  std::string_view others;     // "weight", for "; 2 more weights"
};

// Returns at most one finding: the earliest, and within an iteration the first in training order.
std::vector<Finding> find_compared(const Facts& facts, const ComparedRanks& compared);

}  // namespace telens::analysis
