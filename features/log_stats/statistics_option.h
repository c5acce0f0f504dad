// The option `stats` that the statistics features share: a list of names, one of which may be a
// mapping, {max_blockwise_dynamic_range: {block_size: 32, dims: 1}}.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "features/statistics/statistic_name.h"
#include "hooks/config/feature_description.h"

namespace telens::features {

// What one feature's `stats` may hold.
struct StatisticsRules {
  std::string_view feature;
  std::span<const Statistic> statistics;
  bool any_case = false;  // names in capitals are taken too
  // Which may stand before a name; where there are any, "_columnwise" may stand behind.
  std::span<const RecipeId> recipes = {};
  // The recipe that names without one are about; nullopt: the running one.
  std::optional<RecipeId> implied = std::nullopt;
};

// The parameter `stats` of a feature's description, validated by the rules. Where there is a list
// of `defined` statistics, those may be named beside the rules' own.
config::Parameter statistics_parameter(const StatisticsRules& rules, std::string doc,
                                       config::StatisticDescriptionsPtr defined = nullptr);

// Under which names one iteration records these statistics of a tensor: the counters, which come
// with any statistic, included.
std::vector<std::string> recorded_names(std::span<const StatisticName> statistics,
                                        std::string_view tensor);

// The names in their order, each once; mistakes go to the errors.
std::vector<StatisticName> parse_statistics(const config::Value& stats,
                                            const StatisticsRules& rules, config::ErrorList& errors,
                                            const config::StatisticDescriptions* defined = nullptr);

}  // namespace telens::features
