#include "features/builtin_options.h"

namespace telens::features {

config::FeatureDescription disable_fp8_gemm_description() {
  return {
      .feature_namespace = std::string(config::kTransformerEngineNamespace),
      .name = "DisableFP8GEMM",
      .aliases = {"DisableQuantizationGEMM"},
      .summary = "runs chosen GEMMs in high precision",
      .doc = "The operands of the chosen GEMMs are not quantized, whatever the recipe.",
      .example =
          "DisableFP8GEMM:\n"
          "  enabled: True\n"
          "  gemms: [dgrad, wgrad]\n",
      .selects = config::Selects::gemms,
      .recorded = config::nothing_recorded,
      .attached = config::kNeedsFp8Modules,
  };
}

config::FeatureDescription disable_fp8_layer_description() {
  return {
      .feature_namespace = std::string(config::kTransformerEngineNamespace),
      .name = "DisableFP8Layer",
      .aliases = {"DisableQuantizationLayer"},
      .summary = "runs the whole layer in high precision",
      .doc = "No operand of the layer's three GEMMs is quantized, whatever the recipe.",
      .example =
          "DisableFP8Layer:\n"
          "  enabled: True\n",
      .recorded = config::nothing_recorded,
      .attached = config::kNeedsFp8Modules,
  };
}

}  // namespace telens::features
