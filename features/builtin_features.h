// The list of features that come with TELens.
#pragma once

#include <vector>

#include "hooks/feature_registration.h"

namespace telens {

// Configurations may name the statistics as well as built-in ones; null: none.
std::vector<FeatureRegistration> builtin_features(
    const config::StatisticDescriptionsPtr& statistics = nullptr);

}  // namespace telens
