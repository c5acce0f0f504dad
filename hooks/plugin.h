// The parts of a plugin. A plugin is a shared library in one of the folders of
// InitializeOptions::feature_dirs that contains, once:
//
//   TELENS_PLUGIN(plugin) {
//     plugin.add({description, factory});                             // a feature
//     plugin.add({{.name = "excess_kurtosis", .words = 5}, definition});  // a statistic
//   }
//
// The interface uses C++ types of TELens and LibTorch, so a plugin only runs if the minor versions
// of TELens and LibTorch are the ones that it was compiled with. They are stored in an ELF note,
// which is read before the library is opened.
#pragma once

#include <string>
#include <utility>

#include "hooks/feature_registry.h"
#include "hooks/plugin_versions.h"

namespace telens {

// Collects the features and statistics of a plugin.
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

#define TELENS_PLUGIN(registrar)                                                    \
  __asm__(TELENS_PLUGIN_NOTE);                                                      \
  extern "C" TELENS_EXPORT void telens_register_features(telens::PluginRegistrar&); \
  extern "C" void telens_register_features(telens::PluginRegistrar& registrar)
