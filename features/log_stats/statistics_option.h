// The option `stats` that the statistics features share: a list of names, one of which may be a
// mapping, {max_blockwise_dynamic_range: {block_size: 32, dims: 1}}. No LibTorch.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/config/feature_description.h"
#include "hooks/statistics/statistic_name.h"

namespace telens::features {

// The options of the features that log statistics.
struct StatisticsOptions {
  std::vector<StatisticName> statistics;    // no name twice
  config::StatisticDescriptionsPtr plugin;  // keeps the rows of plugins' statistics; null: none
};

// The statistics that one feature's `stats` may hold.
struct StatisticsRules {
  std::string_view feature;
  std::vector<StatisticId> statistics;
  bool all_by_default = false;  // where `stats` is left out; else it is required
  bool any_case = false;        // names in capitals are taken too
  // Recipes that may stand before a name; where there are any, "_columnwise" may stand behind.
  std::vector<RecipeId> recipes = {};
  std::string_view other_recipes_in = {};  // the feature that takes those not among `recipes`
  // The recipe that names without one are about; nullopt: the running one.
  std::optional<RecipeId> implied = std::nullopt;
};

// Describes `stats` by the rules: the parameter, which lists the statistics with their one-line
// docs and `more` behind them, the options and what they record. Where `plugin` is not null, its
// statistics may be named beside the rules' own.
void describe_statistics(config::FeatureDescription& description, const StatisticsRules& rules,
                         std::string_view more = {},
                         config::StatisticDescriptionsPtr plugin = nullptr);

// The names under which one iteration records these statistics of a tensor, with the counters that
// come along.
std::vector<std::string> recorded_names(std::span<const StatisticName> statistics,
                                        std::string_view tensor);

// The names in their order, each once; mistakes go to the errors.
std::vector<StatisticName> parse_statistics(const config::Value& stats,
                                            const StatisticsRules& rules, config::ErrorList& errors,
                                            const config::StatisticDescriptions* plugin = nullptr);

}  // namespace telens::features
