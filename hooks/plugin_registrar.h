// Collects the features and statistics of a plugin. No LibTorch.
#pragma once

#include <string>
#include <utility>

#include "hooks/feature_registry.h"

namespace telens {

class TELENS_EXPORT PluginRegistrar {
 public:
  PluginRegistrar(FeatureRegistry& registry, std::string path)
      : registry_(registry), path_(std::move(path)) {}

  // Throws ConfigError naming both owners if the name is already taken.
  void add(FeatureRegistration registration);
  void add(StatisticRegistration registration);

 private:
  FeatureRegistry& registry_;
  std::string path_;
};

}  // namespace telens
