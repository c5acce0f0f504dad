// The first thing that differs among ranks, by what features that compare them have recorded.
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

// One finding at most: the earliest, and of those of one iteration the first in the order of turns.
std::vector<Finding> find_compared(const Facts& facts, const ComparedRanks& compared);

}  // namespace telens::analysis
