#include "features/builtin_options.h"

namespace telens::features {

config::FeatureDescription per_tensor_scaling_description() {
  return {
      .feature_namespace = std::string(config::kTransformerEngineNamespace),
      .name = "PerTensorScaling",
      .summary = "current scaling of selected tensors within delayed scaling",
      .doc =
          "Quantizes each selected tensor with a scale from its current amax instead of its amax\n"
          "history, in the recipe's FP8 format for this tensor. The GEMM runs in FP8, and its\n"
          "second operand may keep a delayed scale. Requires layers that run under the recipe\n"
          "DelayedScaling; throws an error under other recipes and outside of fp8_autocast. The\n"
          "amax history is still updated, so that delayed scaling can resume.",
      .example =
          "PerTensorScaling:\n"
          "  enabled: True\n"
          "  gemms: [dgrad, wgrad]\n"
          "  tensors: [gradient]\n",
      .selects = config::Selects::gemms_and_tensors,
      .tensors = config::gemm_input_names(),
      .modifies = true,
      .recorded = config::nothing_recorded,
      .attached = config::kNeedsFp8Modules,
  };
}

}  // namespace telens::features
