// Features with every kind of selection, for tests of the configuration.
#pragma once

#include <fmt/format.h>

#include <string>

#include "core/base/error.h"
#include "hooks/config/config.h"

namespace telens::config {

inline Descriptions test_descriptions() {
  Descriptions descriptions;
  const std::string te(kTransformerEngineNamespace);
  descriptions.add(
      {.feature_namespace = te,
       .name = "Modify",
       .aliases = {"Alter"},
       .selects = Selects::gemms_and_tensors,
       .tensors = all_tensor_names(),
       .modifies = true,
       .parameters = {{.name = "how",
                       .type = ParameterType::string,
                       .required = true,
                       .allowed_values = {"round", "truncate"}},
                      {.name = "bits", .type = ParameterType::integer, .default_value = 8}}});
  descriptions.add({.feature_namespace = te,
                    .name = "Scale",
                    .selects = Selects::gemms_and_tensors,
                    .tensors = gemm_input_names(),
                    .modifies = true});
  descriptions.add(
      {.feature_namespace = te,
       .name = "Watch",
       .selects = Selects::tensors,
       .tensors = gemm_input_names(),
       .parameters = {{.name = "what", .type = ParameterType::list_of_strings, .required = true}}});
  descriptions.add({.feature_namespace = te, .name = "Gemms", .selects = Selects::gemms});
  descriptions.add({.feature_namespace = te, .name = "Layer", .schedule = false});
  descriptions.add({.feature_namespace = te, .name = "Own", .opaque = true});
  descriptions.add({.feature_namespace = "base", .name = "Free", .selects = Selects::tensors});
  descriptions.add({.feature_namespace = "telens", .name = "Trigger"});
  descriptions.add({.feature_namespace = "telens",
                    .name = "Noise",
                    .selects = Selects::gemms_and_tensors,
                    .tensors = all_tensor_names(),
                    .modifies = true});
  return descriptions;
}

inline const Descriptions& shared_descriptions() {
  static const Descriptions kDescriptions = test_descriptions();
  return kDescriptions;
}

inline Config load(std::string_view yaml) {
  return load_config_text(yaml, "f.yaml", shared_descriptions());
}

// Returns the error of loading the text; "" if there is none.
inline std::string get_error(std::string_view yaml) {
  try {
    load(yaml);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

// Returns a section "s" for all layers with these lines (indented by two) in transformer_engine.
inline std::string with_features(std::string_view features) {
  return fmt::format(
      "s:\n  enabled: True\n  layers: {{layer_types: all}}\n  transformer_engine:\n{}", features);
}

}  // namespace telens::config
