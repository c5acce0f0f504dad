// All rules: an explicit list.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "analysis/rule.h"

namespace telens::analysis {

std::span<const Rule> rules();
// Throws InternalError for an unknown cause.
const Rule& find_rule(std::string_view cause);
// Returns the statistics that any rule reads, without duplicates.
std::vector<std::string_view> statistics_of_rules();

}  // namespace telens::analysis
