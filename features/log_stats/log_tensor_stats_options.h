// LogTensorStats: statistics of the high-precision tensor. Options and description; no LibTorch.
#pragma once

#include <vector>

#include "features/statistics/statistic_name.h"
#include "hooks/config/feature_description.h"

namespace telens::features {

struct LogTensorStatsOptions {
  std::vector<StatisticName> statistics;  // no name twice

  // From the parameters of a config::Selection, which have been validated.
  static LogTensorStatsOptions from(const config::Value& parameters);
};

// transformer_engine.LogTensorStats, called by the layers. `defined` statistics may be named too.
config::FeatureDescription log_tensor_stats_description(
    config::StatisticDescriptionsPtr defined = nullptr);

// base.LogTensorStats, called by debug.log_tensor_stats(): free tensor names, six statistics.
config::FeatureDescription base_log_tensor_stats_description(
    config::StatisticDescriptionsPtr defined = nullptr);

}  // namespace telens::features
