// All rules: an explicit list.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "analysis/rule.h"

namespace telens::analysis {

std::span<const Rule> rules();
// Throws InternalError for a cause that is none.
const Rule& find_rule(std::string_view cause);
// The statistics that any rule reads, each once.
std::vector<std::string_view> statistics_of_rules();

}  // namespace telens::analysis
