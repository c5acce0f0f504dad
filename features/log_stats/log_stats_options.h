// The features that log statistics of tensors: their descriptions and the option `stats` that they
// share, a list of names. One of them may be a mapping, {max_blockwise_dynamic_range: {block_size:
// 32, dims: 1}}. No LibTorch.
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
  std::vector<StatisticName> statistics;    // no duplicates
  config::StatisticDescriptionsPtr plugin;  // keeps plugins' statistics alive; nullptr if none
};

// The statistics that a feature's `stats` may contain.
struct StatisticsRules {
  std::string_view feature;
  std::vector<StatisticId> statistics;
  bool all_by_default = false;  // if `stats` is omitted; otherwise it is required
  bool any_case = false;        // also accepts names in capitals
  // Recipes that may precede a name. If there are any, "_columnwise" may follow the name.
  std::vector<RecipeId> recipes = {};
  std::string_view other_recipes_in = {};  // the feature that accepts recipes outside `recipes`
  // The recipe to which names without a recipe refer; nullopt for the running one.
  std::optional<RecipeId> implied = std::nullopt;
};

// Describes `stats` by the rules: the parameter, whose docs list the statistics with their one-line
// docs, followed by `more`; the options; and the names that they record. If `plugin` is not
// nullptr, its statistics may be named in addition to the rules' statistics.
void describe_statistics(config::FeatureDescription& description, const StatisticsRules& rules,
                         std::string_view more = {},
                         config::StatisticDescriptionsPtr plugin = nullptr);

// Returns the names under which an iteration records these statistics of a tensor, including the
// counters that are recorded with them.
std::vector<std::string> recorded_names(std::span<const StatisticName> statistics,
                                        std::string_view tensor);

// Returns the names in order, each once. Adds mistakes to `errors`.
std::vector<StatisticName> parse_statistics(const config::Value& stats,
                                            const StatisticsRules& rules, config::ErrorList& errors,
                                            const config::StatisticDescriptions* plugin = nullptr);

// transformer_engine.LogTensorStats, called by the layers: statistics of the high-precision tensor,
// and statistics of plugins.
config::FeatureDescription log_tensor_stats_description(
    config::StatisticDescriptionsPtr plugin = nullptr);

// base.LogTensorStats, called by debug.log_tensor_stats(): free tensor names, six statistics.
config::FeatureDescription base_log_tensor_stats_description(
    config::StatisticDescriptionsPtr plugin = nullptr);

// LogFp8TensorStats (LogFp8Stats) and similar features for other elements: statistics of the
// quantized tensor, for the running recipe or, as a what-if, for another recipe.
std::vector<config::FeatureDescription> low_precision_stats_descriptions();

// telens.ScaleHealth: statistics of the scale of a tensor with a single scale.
config::FeatureDescription scale_health_description();

}  // namespace telens::features
