#include "features/log_stats/log_nvfp4_tensor_stats_options.h"

#include <array>

#include "features/log_stats/statistics_option.h"

namespace telens::features {
namespace {

// Those of Transformer Engine.
constexpr std::array kStatistics{Statistic::underflows, Statistic::mse};
constexpr std::array kRecipes{RecipeId::nvfp4};

constexpr StatisticsRules kRules{.feature = "LogNvfp4TensorStats",
                                 .statistics = kStatistics,
                                 .recipes = kRecipes,
                                 .implied = RecipeId::nvfp4};

}  // namespace

LogNvfp4TensorStatsOptions LogNvfp4TensorStatsOptions::from(const config::Value& parameters) {
  config::ErrorList errors;
  LogNvfp4TensorStatsOptions options{parse_statistics(*parameters.find("stats"), kRules, errors)};
  errors.raise_if_any();
  return options;
}

config::FeatureDescription log_nvfp4_tensor_stats_description() {
  return {
      .feature_namespace = std::string(config::kTransformerEngineNamespace),
      .name = "LogNvfp4TensorStats",
      .summary = "statistics of the tensor in NVFP4",
      .doc =
          "Says what the cast to NVFP4 did to a tensor or would have done: where NVFP4 runs, of\n"
          "its own codes; otherwise of its defaults, rounded to the nearest (weights in 16x16\n"
          "blocks, what feeds wgrad after a random Hadamard transform). Logged as\n"
          "nvfp4_underflows% and nvfp4_mse.",
      .example =
          "LogNvfp4TensorStats:\n"
          "  enabled: True\n"
          "  tensors: [activation, gradient]\n"
          "  stats: [underflows%, mse, mse_columnwise]\n"
          "  freq: 10\n",
      .selects = config::Selects::tensors,
      .tensors = config::gemm_input_names(),
      .parameters = {statistics_parameter(
          kRules,
          "underflows% (nonzero elements that became zero), mse; each may have nvfp4_ before\n"
          "      it, and _columnwise behind it: the copy with blocks along columns")},
      .can_be_kept = true,
      .names_evaluation = true,
      .recorded =
          [](const config::Value& parameters, std::string_view tensor) {
            return recorded_names(LogNvfp4TensorStatsOptions::from(parameters).statistics, tensor);
          },
  };
}

}  // namespace telens::features
