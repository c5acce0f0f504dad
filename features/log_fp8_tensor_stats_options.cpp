#include "features/log_fp8_tensor_stats_options.h"

#include "features/statistics_option.h"

namespace telens::features {
namespace {

constexpr StatisticsRules kRules{
    .feature = "LogFp8TensorStats", .statistics = kCastStatistics, .takes_recipe = true};

}  // namespace

LogFp8TensorStatsOptions LogFp8TensorStatsOptions::from(const config::Value& parameters) {
  config::ErrorList errors;
  LogFp8TensorStatsOptions options{parse_statistics(*parameters.find("stats"), kRules, errors)};
  errors.raise_if_any();
  return options;
}

config::FeatureDescription log_fp8_tensor_stats_description() {
  return {
      .feature_namespace = std::string(config::kTransformerEngineNamespace),
      .name = "LogFp8TensorStats",
      .aliases = {"LogFp8Stats"},
      .summary = "statistics of the quantized tensor",
      .doc =
          "Says what the cast to FP8 did to a tensor under the running recipe or, with a recipe\n"
          "before the name, what that recipe would have done in the running recipe's FP8\n"
          "format, else E4M3. Skips, with a warning, a layer that runs unquantized.",
      .example =
          "LogFp8TensorStats:\n"
          "  enabled: True\n"
          "  tensors_struct:\n"
          "    - tensor: activation\n"
          "      stats: [underflows%, fp8_current_scaling_mse]\n"
          "    - tensor: gradient\n"
          "      stats: [underflows%, overflows%, scale_inv_min, scale_inv_max]\n"
          "      freq: 10\n",
      .selects = config::Selects::tensors,
      .tensors = config::gemm_input_names(),
      .parameters = {statistics_parameter(
          kRules,
          "underflows% (nonzero elements that became zero), overflows% (elements beyond the\n"
          "      largest value), saturated (how many the cast clipped), scale_inv_min,\n"
          "      scale_inv_max, mse; each may have fp8_delayed_scaling_ (while it runs) or\n"
          "      fp8_current_scaling_ before it")},
      .recorded =
          [](const config::Value& parameters, std::string_view tensor) {
            return recorded_names(LogFp8TensorStatsOptions::from(parameters).statistics, tensor);
          },
  };
}

}  // namespace telens::features
