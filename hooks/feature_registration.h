// The registration of a feature, and the list of features built into TELens.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "hooks/config/statistic_description.h"
#include "hooks/observer.h"

namespace telens {

// A row of the list of features: its description and its factory.
struct FeatureRegistration {
  config::FeatureDescription description;
  FeatureFactory make;
};

// The features built into TELens. `features` receives the statistics that configurations may name
// in addition to built-in ones; null if there are none.
struct BuiltinFeatures {
  std::function<std::vector<FeatureRegistration>(const config::StatisticDescriptionsPtr&)> features;
  std::function<bool(std::string_view name)> has_statistic;
};

}  // namespace telens
