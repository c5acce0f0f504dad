#include "features/log_stats/log_fp8_tensor_stats_options.h"

#include <array>

#include "features/log_stats/statistics_option.h"

namespace telens::features {
namespace {

// NVFP4 has a feature of its own. Delayed scaling needs the running recipe's own history; that it
// runs can be known only when a layer does.
constexpr std::array kRecipes{RecipeId::fp8_delayed_scaling, RecipeId::fp8_current_scaling,
                              RecipeId::mxfp8, RecipeId::fp8_block_scaling};

constexpr StatisticsRules kRules{
    .feature = "LogFp8TensorStats", .statistics = kCastStatistics, .recipes = kRecipes};

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
          "Says what the cast to low precision did to a tensor under the running recipe or, with\n"
          "a recipe before the name, what that recipe would have done in the running recipe's\n"
          "FP8 format, else E4M3. Skips, with a warning, a layer that runs unquantized. Of a\n"
          "recipe with a scale a block the rowwise copy is measured, with _columnwise behind the\n"
          "name the columnwise one; if only one of a tensor's GEMMs is quantized, that copy.",
      .example =
          "LogFp8TensorStats:\n"
          "  enabled: True\n"
          "  tensors_struct:\n"
          "    - tensor: activation\n"
          "      stats: [underflows%, mxfp8_mse, mxfp8_mse_columnwise]\n"
          "    - tensor: gradient\n"
          "      stats: [underflows%, overflows%, scale_inv_min, scale_inv_max]\n"
          "      freq: 10\n",
      .selects = config::Selects::tensors,
      .tensors = config::gemm_input_names(),
      .parameters = {statistics_parameter(
          kRules,
          "underflows% (nonzero elements that became zero), overflows% (elements beyond the\n"
          "      largest value), saturated (how many the cast clipped), scale_inv_min,\n"
          "      scale_inv_max, mse; each may have fp8_delayed_scaling_ (while it runs),\n"
          "      fp8_current_scaling_, mxfp8_ or fp8_block_scaling_ before it, and, of a recipe\n"
          "      with a scale a block, _columnwise behind it")},
      .can_be_kept = true,
      .names_evaluation = true,
      .recorded =
          [](const config::Value& parameters, std::string_view tensor) {
            return recorded_names(LogFp8TensorStatsOptions::from(parameters).statistics, tensor);
          },
  };
}

}  // namespace telens::features
