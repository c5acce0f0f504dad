// ScaleHealth: whether the scale of a tensor still fits it. Options and description; no LibTorch.
#pragma once

#include <vector>

#include "features/statistics/statistic_name.h"
#include "hooks/config/feature_description.h"

namespace telens::features {

struct ScaleHealthOptions {
  std::vector<StatisticName> statistics;  // no name twice

  // From the parameters of a config::Selection, which have been validated.
  static ScaleHealthOptions from(const config::Value& parameters);
};

config::FeatureDescription scale_health_description();

}  // namespace telens::features
