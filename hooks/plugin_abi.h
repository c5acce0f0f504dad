// The parts of a plugin that does not use LibTorch. It runs with every version of torch that TELens
// supports, if the minor version of TELens is the one that it was compiled with. hooks/plugin.h is
// for plugins that use LibTorch.
//
// The plugin is a shared library in one of the folders of InitializeOptions::feature_dirs that
// contains, once:
//
//   TELENS_PLUGIN(plugin) {
//     plugin.add({description, factory});                             // a feature
//     plugin.add({{.name = "excess_kurtosis", .words = 5}, definition});  // a statistic
//   }
//
// - A feature derives from Observer or ScheduledObserver. It sees tensors as TensorHandle:
//   tensor_ops::to_doubles copies the elements to the host.
// - A statistic derives from StatisticFunctions. Its sums may be in host memory
//   (TensorHandle::on_host).
#pragma once

#include "hooks/feature_registry.h"
#include "hooks/observer.h"
#include "hooks/statistic_definition.h"
#include "hooks/tensor_ops.h"
#include "hooks/version.h"

#ifdef TELENS_PLUGIN
#error "include either hooks/plugin.h or hooks/plugin_abi.h"
#endif

#define TELENS_PLUGIN(registrar)                                                    \
  __asm__(TELENS_NOTE(TELENS_MINOR_VERSION));                                       \
  extern "C" TELENS_EXPORT void telens_register_features(telens::PluginRegistrar&); \
  extern "C" void telens_register_features(telens::PluginRegistrar& registrar)
