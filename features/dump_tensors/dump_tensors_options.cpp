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
      .summary = "writes tensors to disk, one file each",
      .doc =
          "Writes <log_dir>/tensor_dumps/rank_<r>/iter_<000000>/<layer>_<tensor>.h5: values,\n"
          "codes, scales and their layout. docs/run_file.md describes the file, and h5py can\n"
          "read it. If a file exists, for example from an earlier micro-batch, the next one gets\n"
          "a suffix: ....1.h5. Files from an evaluation (`mode: both`) end with _eval.\n"
          "`operands` writes one file per GEMM, <layer>_<gemm>_gemm.h5, for `telens replay`:\n"
          "both operands before and after their casts, the bias, the result and the kernel.\n"
          "Select activation, weight and output for fprop; gradient, weight and dgrad for dgrad;\n"
          "gradient, activation and wgrad for wgrad. A tensor is kept in memory from its cast to\n"
          "its last GEMM. Training waits for the disk.",
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
                          "the GEMM operands: codes and scales, or values if the GEMM\n"
                          "      runs in high precision"),
                     flag(kOperands,
                          "one file per GEMM whose three tensors are all selected. If all\n"
                          "      three flags are False, nothing is written")},
      .names_evaluation = true,
      .parse = parse_options,
      // Not .recorded: the size depends on the tensors, which are in separate files.
      .attached = "without operands of GEMMs; quantized tensors of torchao's layers",
  };
}

}  // namespace telens::features
