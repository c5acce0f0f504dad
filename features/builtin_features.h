// The list of built-in features.
#pragma once

#include <vector>

#include "hooks/feature_registration.h"

namespace telens {

// Configurations may name these statistics in addition to the built-in ones; nullptr if there are
// none.
std::vector<FeatureRegistration> builtin_features(
    const config::StatisticDescriptionsPtr& statistics = nullptr);

}  // namespace telens
