// A feature as a list names it, and the list of those that come with TELens.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "hooks/config/statistic_description.h"
#include "hooks/feature.h"

namespace telens {

// A row of the list of features: how it is described and how an instance is made.
struct FeatureRegistration {
  config::FeatureDescription description;
  FeatureFactory make;
};

// The features that come with TELens. Configurations may name the statistics that features are made
// with as well as built-in ones; null: none.
struct BuiltinFeatures {
  std::function<std::vector<FeatureRegistration>(const config::StatisticDescriptionsPtr&)> features;
  std::function<bool(std::string_view name)> has_statistic;
};

}  // namespace telens
