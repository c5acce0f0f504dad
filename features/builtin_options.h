// The descriptions of the features that come with TELens, for programs that read configurations
// without LibTorch: the command and the tests. features/builtin_features.cpp has the same list
// together with what the features do; a test holds the two against each other.
#pragma once

#include "hooks/config/feature_description.h"
#include "hooks/config/statistic_description.h"

namespace telens::features {

// Configurations may name the statistics as well as built-in ones; null: none.
config::Descriptions builtin_descriptions(
    const config::StatisticDescriptionsPtr& statistics = nullptr);

}  // namespace telens::features
