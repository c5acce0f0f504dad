#include "features/per_tensor_scaling/per_tensor_scaling_options.h"

namespace telens::features {

config::FeatureDescription per_tensor_scaling_description() {
  return {
      .feature_namespace = std::string(config::kTransformerEngineNamespace),
      .name = "PerTensorScaling",
      .summary = "current scaling of chosen tensors within delayed scaling",
      .doc =
          "Each chosen tensor is quantized under a scale from its own amax in place of that of "
          "its\n"
          "amax history, in the FP8 format that the recipe has for it. The GEMM runs in FP8; the\n"
          "other operand may keep its delayed scale. For layers that run under the recipe\n"
          "DelayedScaling; under another one, or outside of fp8_autocast, it is an error. The "
          "amax\n"
          "history is kept up all the same, so that delayed scaling can take over again.",
      .example =
          "PerTensorScaling:\n"
          "  enabled: True\n"
          "  gemms: [dgrad, wgrad]\n"
          "  tensors: [gradient]\n",
      .selects = config::Selects::gemms_and_tensors,
      .tensors = config::gemm_input_names(),
      .modifies = true,
      .recorded = config::nothing_recorded,
  };
}

}  // namespace telens::features
