// Features of every kind of selection, for the tests of the configuration.
#pragma once

#include <string>

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

}  // namespace telens::config
