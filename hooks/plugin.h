// What a feature plugin is made of. A plugin is a shared library in one of the folders of
// InitializeOptions::feature_dirs that says, once:
//
//   TELENS_PLUGIN(plugin) { plugin.add({description, factory}); }
//
// Behind that stand C++ types of TELens and LibTorch, so a plugin runs only with the minor versions
// of the two that it was compiled with. They are kept in an ELF note, which is read before the
// library is opened.
#pragma once

#include <torch/version.h>

#include <string>
#include <utility>

#include "hooks/feature_registry.h"

namespace telens {

// What a plugin registers its features with.
class TELENS_EXPORT PluginRegistrar {
 public:
  PluginRegistrar(FeatureRegistry& registry, std::string path)
      : registry_(registry), path_(std::move(path)) {}

  // Throws ConfigError where a feature of that name exists, naming both owners.
  void add(FeatureRegistration registration);

 private:
  FeatureRegistry& registry_;
  std::string path_;
};

}  // namespace telens

#define TELENS_VERSION_MAJOR 0
#define TELENS_VERSION_MINOR 1

#define TELENS_TO_STRING_OF(text) #text
#define TELENS_TO_STRING(macro) TELENS_TO_STRING_OF(macro)
#define TELENS_MINOR_VERSION \
  TELENS_TO_STRING(TELENS_VERSION_MAJOR) "." TELENS_TO_STRING(TELENS_VERSION_MINOR)
#define TELENS_TORCH_MINOR_VERSION \
  TELENS_TO_STRING(TORCH_VERSION_MAJOR) "." TELENS_TO_STRING(TORCH_VERSION_MINOR)

// Owner "telens", type 1; the description is "<telens> <torch>", two minor versions.
#define TELENS_PLUGIN_NOTE                                           \
  ".pushsection .note.telens, \"a\", %note\n"                        \
  ".balign 4\n"                                                      \
  ".long 1f - 0f, 3f - 2f, 1\n"                                      \
  "0: .asciz \"telens\"\n"                                           \
  "1: .balign 4\n"                                                   \
  "2: .asciz \"" TELENS_MINOR_VERSION " " TELENS_TORCH_MINOR_VERSION \
  "\"\n"                                                             \
  "3: .balign 4\n"                                                   \
  ".popsection\n"

#define TELENS_PLUGIN(registrar)                                                    \
  __asm__(TELENS_PLUGIN_NOTE);                                                      \
  extern "C" TELENS_EXPORT void telens_register_features(telens::PluginRegistrar&); \
  extern "C" void telens_register_features(telens::PluginRegistrar& registrar)
