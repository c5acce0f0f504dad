// Finds the first difference between ranks that RankAgreement or CollectiveCheck recorded.
#pragma once

#include <string_view>
#include <vector>

#include "analysis/rule.h"

namespace telens::analysis {

struct RankComparison {
  std::string_view cause;
  std::string_view statistic;  // above 0 on each rank that has the problem
  std::string_view summary;    // a sentence without a period
  std::string_view others;     // noun for the other tensors: "weight"
};

// Returns the earliest difference as a finding, or nothing if the ranks agree. Within an iteration,
// the first in training order.
std::vector<Finding> find_rank_difference(const Facts& facts, const RankComparison& comparison);

}  // namespace telens::analysis
