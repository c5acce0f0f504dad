#include "features/dump_tensors/dump_tensors_options.h"

namespace telens::features {
namespace {

constexpr std::string_view kHighPrecision = "high_precision_tensor";
constexpr std::string_view kQuantized = "quantized_tensor";
constexpr std::string_view kOperands = "operands";

config::Parameter flag(std::string_view name, std::string doc) {
  return {.name = std::string(name),
          .type = config::ParameterType::boolean,
          .default_value = false,
          .doc = std::move(doc)};
}

config::OptionsPtr parse_options(const config::Value& parameters, config::ErrorList&) {
  return config::make_options(
      DumpTensorsOptions{.high_precision = parameters.find(kHighPrecision)->as_bool(),
                         .quantized = parameters.find(kQuantized)->as_bool(),
                         .operands = parameters.find(kOperands)->as_bool()});
}

}  // namespace

config::FeatureDescription dump_tensors_description() {
  return {
      .feature_namespace = std::string(config::kTransformerEngineNamespace),
      .name = "DumpTensors",
      .summary = "writes tensors to disk, a file each",
      .doc =
          "Writes <log_dir>/tensor_dumps/rank_<r>/iter_<000000>/<layer>_<tensor>.h5: values,\n"
          "codes, scales and their layout, which docs/run_file.md describes and h5py alone can\n"
          "read. A name that is taken already, by a later micro-batch for example, gets a\n"
          "suffix: ....1.h5. Those of an evaluation (`mode: both`) end with _eval.\n"
          "With `operands` there is a file a GEMM, <layer>_<gemm>_gemm.h5, which\n"
          "`telens replay` runs again: both operands, before and after their casts, the\n"
          "bias, the result and the kernel. For fprop choose activation, weight and\n"
          "output, for dgrad gradient, weight and dgrad, for wgrad gradient, activation\n"
          "and wgrad. From a tensor's cast to its last GEMM it is kept in memory.\n"
          "Training waits for the disk.",
      .example =
          "DumpTensors:\n"
          "  enabled: True\n"
          "  high_precision_tensor: True\n"
          "  quantized_tensor: True\n"
          "  tensors: [activation, weight, output]\n"
          "  start_step: 100\n"
          "  end_step: 100\n",
      .selects = config::Selects::tensors,
      .tensors = config::with_attention(config::all_tensor_names(), /*scores=*/false),
      .parameters = {flag(kHighPrecision, "the tensor before quantization"),
                     flag(kQuantized,
                          "what feeds the GEMMs: codes and scales, or the values where a GEMM\n"
                          "      runs in high precision"),
                     flag(kOperands,
                          "a file for each GEMM of which all three tensors are chosen\n"
                          "      with it. Without any of the three nothing is written")},
      .names_evaluation = true,
      .parse = parse_options,
      // Not .recorded: the size depends on the tensors, which are in separate files.
  };
}

}  // namespace telens::features
