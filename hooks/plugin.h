// The parts of a plugin that uses LibTorch; hooks/plugin_abi.h is for plugins that do not. A plugin
// is a shared library in one of the folders of InitializeOptions::feature_dirs that contains, once:
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

#include "hooks/feature.h"
#include "hooks/feature_registry.h"
#include "hooks/plugin_versions.h"

#ifdef TELENS_PLUGIN
#error "include either hooks/plugin.h or hooks/plugin_abi.h"
#endif

#define TELENS_PLUGIN(registrar)                                                    \
  __asm__(TELENS_PLUGIN_NOTE);                                                      \
  extern "C" TELENS_EXPORT void telens_register_features(telens::PluginRegistrar&); \
  extern "C" void telens_register_features(telens::PluginRegistrar& registrar)
