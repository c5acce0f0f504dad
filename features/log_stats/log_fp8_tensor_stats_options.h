// LogFp8TensorStats (LogFp8Stats): statistics of the quantized tensor, for the running recipe or,
// what-if, for another. Options and description; no LibTorch.
#pragma once

#include <vector>

#include "features/statistics/statistic_name.h"
#include "hooks/config/feature_description.h"

namespace telens::features {

struct LogFp8TensorStatsOptions {
  std::vector<StatisticName> statistics;  // no name twice

  // From the parameters of a config::Selection, which have been validated.
  static LogFp8TensorStatsOptions from(const config::Value& parameters);
};

config::FeatureDescription log_fp8_tensor_stats_description();

}  // namespace telens::features
