// The descriptions of the features that log statistics of tensors. They share one type of options
// (features/log_stats/statistics_option.h). No LibTorch.
#pragma once

#include <vector>

#include "features/log_stats/statistics_option.h"
#include "hooks/config/feature_description.h"

namespace telens::features {

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
