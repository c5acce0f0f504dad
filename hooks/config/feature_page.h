// The page docs/features.md, generated from the descriptions of features and statistics.
#pragma once

#include <span>
#include <string>

#include "hooks/config/feature_description.h"
#include "hooks/config/statistic_description.h"

namespace telens::config {

std::string features_page(const Descriptions& descriptions,
                          std::span<const StatisticDescription> statistics);

}  // namespace telens::config
