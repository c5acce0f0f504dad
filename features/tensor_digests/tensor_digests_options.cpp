#include "features/builtin_options.h"

namespace telens::features {

config::FeatureDescription tensor_digests_description() {
  return {
      .feature_namespace = std::string(config::kTelensNamespace),
      .name = "TensorDigests",
      .summary = "digest of a tensor's bits, for exact comparisons of two runs",
      .doc =
          "Records a number of 52 bits that depends on every bit of the high-precision tensor, on\n"
          "the order of its elements, its dtype and its sizes: 0 and -0 differ, and so do a "
          "tensor\n"
          "and its transpose. Of a weight that is stored in FP8, codes and scales are digested.\n"
          "`telens diff --exact A B` finds the first tensor whose bits differ. Each call of a "
          "layer\n"
          "in an iteration has a separate digest: `digest` for the first, `digest.1` for the "
          "second.\n"
          "Calls are micro-batches if each micro-batch calls each layer once. Each rank records "
          "its\n"
          "own digests, so two runs must divide their tensors over ranks in the same way.",
      .example =
          "TensorDigests:\n"
          "  enabled: True\n"
          "  tensors: [activation, weight, output, gradient, dgrad, wgrad]\n"
          "  freq: 1\n",
      .selects = config::Selects::tensors,
      .tensors = config::with_attention(config::all_tensor_names(), /*scores=*/false),
  };
}

}  // namespace telens::features
