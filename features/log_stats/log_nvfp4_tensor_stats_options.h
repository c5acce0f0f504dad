// LogNvfp4TensorStats: statistics of the tensor in NVFP4, running or, what-if, not. Options and
// description; no LibTorch.
#pragma once

#include <vector>

#include "features/statistics/statistic_name.h"
#include "hooks/config/feature_description.h"

namespace telens::features {

struct LogNvfp4TensorStatsOptions {
  std::vector<StatisticName> statistics;  // all of RecipeId::nvfp4; no name twice

  // From the parameters of a config::Selection, which have been validated.
  static LogNvfp4TensorStatsOptions from(const config::Value& parameters);
};

config::FeatureDescription log_nvfp4_tensor_stats_description();

}  // namespace telens::features
