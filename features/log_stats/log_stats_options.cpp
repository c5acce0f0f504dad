#include "features/log_stats/log_stats_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>
#include <string>
#include <utility>

#include "hooks/config/selection.h"

namespace telens::features {
namespace {

constexpr std::string_view kMoreOfPlugins = "\n      and statistics that a plugin defines";

// LogFp8TensorStats leaves FP4 to a separate feature. Delayed scaling requires the history of the
// running recipe; whether delayed scaling runs is known only when a layer runs.
std::vector<RecipeId> recipes_in_fp8() {
  std::vector<RecipeId> recipes;
  for (const RecipeId recipe : kAllRecipes) {
    if (!is_packed_fp4(recipe)) recipes.push_back(recipe);
  }
  return recipes;
}

// "fp8_delayed_scaling_ (while it runs), fp8_current_scaling_ ..."
std::string list_prefixes(std::span<const RecipeId> recipes) {
  std::vector<std::string> prefixes;
  for (const RecipeId recipe : recipes) {
    const bool needs_history = recipe == RecipeId::fp8_delayed_scaling;
    prefixes.push_back(
        fmt::format("{}_{}", telens::get_name(recipe), needs_history ? " (while it runs)" : ""));
  }
  return fmt::format("{}", fmt::join(prefixes, ", "));
}

std::vector<StatisticId> statistics_named(std::initializer_list<std::string_view> names) {
  std::vector<StatisticId> statistics;
  for (const std::string_view name : names) statistics.push_back(statistic(name));
  return statistics;
}

// Returns the statistics of the high-precision tensor, of its blocks and of an attention's scores,
// in the order of the catalog.
std::vector<StatisticId> tensor_statistics() {
  std::vector<StatisticId> statistics = statistics_from(StatisticSource::tensor);
  for (const StatisticSource source : {StatisticSource::blocks, StatisticSource::scores}) {
    for (const StatisticId each : statistics_from(source)) statistics.push_back(each);
  }
  return statistics;
}

config::FeatureDescription fp8_stats_description() {
  config::FeatureDescription description{
      .feature_namespace = std::string(config::kTransformerEngineNamespace),
      .name = "LogFp8TensorStats",
      .aliases = {"LogFp8Stats"},
      .summary = "statistics of the quantized tensor",
      .doc =
          "Measures the quantization of a tensor by the running recipe. With a recipe as prefix,\n"
          "measures what that recipe would do, in the FP8 format of the running recipe, else in\n"
          "E4M3. Skips a layer that is not quantized, with a warning. For block-scaled recipes\n"
          "the row-wise copy is measured; append _columnwise for the other one. If only one of a\n"
          "tensor's GEMMs is quantized, its copy is measured. For tensors of an attention, only\n"
          "statistics with a recipe as prefix are available.",
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
      .tensors = config::with_attention(config::gemm_input_names(), /*scores=*/false),
      .can_be_kept = true,
      .names_evaluation = true,
      .attached = "statistics with a recipe as prefix; all of them for layers of torchao",
  };
  describe_statistics(description,
                      {.feature = "LogFp8TensorStats",
                       .statistics = statistics_from(StatisticSource::cast),
                       .recipes = recipes_in_fp8(),
                       .other_recipes_in = "LogNvfp4TensorStats"},
                      fmt::format("\n      each may have one of these prefixes:"
                                  "\n      {}"
                                  "\n      and, for a block-scaled recipe, the suffix _columnwise",
                                  list_prefixes(recipes_in_fp8())));
  return description;
}

config::FeatureDescription nvfp4_stats_description() {
  config::FeatureDescription description{
      .feature_namespace = std::string(config::kTransformerEngineNamespace),
      .name = "LogNvfp4TensorStats",
      .summary = "statistics of the tensor in NVFP4",
      .doc =
          "Measures the effect of the cast to NVFP4 on a tensor. If NVFP4 runs, reads its codes.\n"
          "Otherwise applies its defaults with rounding to nearest: 16x16 blocks for weights,\n"
          "and a random Hadamard transform for the operands of wgrad. Logged as\n"
          "nvfp4_underflows% and nvfp4_mse.",
      .example =
          "LogNvfp4TensorStats:\n"
          "  enabled: True\n"
          "  tensors: [activation, gradient]\n"
          "  stats: [underflows%, mse, mse_columnwise]\n"
          "  freq: 10\n",
      .selects = config::Selects::tensors,
      .tensors = config::gemm_input_names(),
      .can_be_kept = true,
      .names_evaluation = true,
  };
  // The two statistics of Transformer Engine's feature.
  describe_statistics(
      description,
      {.feature = "LogNvfp4TensorStats",
       .statistics = statistics_named({"underflows%", "mse"}),
       .recipes = {RecipeId::nvfp4},
       .other_recipes_in = "LogFp8TensorStats",
       .implied = RecipeId::nvfp4},
      "\n      each may have the prefix nvfp4_, and the suffix _columnwise for the copy with"
      "\n      blocks along columns");
  return description;
}

}  // namespace

config::FeatureDescription log_tensor_stats_description(config::StatisticDescriptionsPtr plugin) {
  config::FeatureDescription description{
      .feature_namespace = std::string(config::kTransformerEngineNamespace),
      .name = "LogTensorStats",
      .summary = "statistics of the high-precision tensor",
      .doc =
          "Reads the tensor before quantization and logs one value per statistic. All statistics\n"
          "of a tensor are computed in one read. The counters nan, posinf, neginf, nonfinite,\n"
          "zeros and subnormals are always recorded with them. The `scores` of an attention are\n"
          "never stored completely. Only the statistics of scores, min, max, numel, cur_amax and\n"
          "the counters are available for them.",
      .example =
          "LogTensorStats:\n"
          "  enabled: True\n"
          "  tensors: [activation, gradient]\n"
          "  stats: [min, max, mean, std, l2_norm, dynamic_range]\n"
          "  freq: 10\n",
      .selects = config::Selects::tensors,
      .tensors = config::with_attention(config::all_tensor_names(), /*scores=*/true),
      .can_be_kept = true,
      .names_evaluation = true,
  };
  describe_statistics(description, {.feature = "LogTensorStats", .statistics = tensor_statistics()},
                      kMoreOfPlugins, std::move(plugin));
  return description;
}

config::FeatureDescription base_log_tensor_stats_description(
    config::StatisticDescriptionsPtr plugin) {
  config::FeatureDescription description{
      .feature_namespace = std::string(config::kBaseNamespace),
      .name = "LogTensorStats",
      .summary = "statistics of a tensor that the program passes to debug.log_tensor_stats()",
      .doc = "Logs immediately, in the call. The program chooses the names of the tensors.",
      .example =
          "LogTensorStats:\n"
          "  enabled: True\n"
          "  tensors: [logits]\n"
          "  stats: [min, max, l2_norm]\n",
      .selects = config::Selects::tensors,
      .attached = "only for tensors passed to debug.log_tensor_stats()",
  };
  // The six statistics of nvdlfw-inspect's base feature.
  describe_statistics(
      description,
      {.feature = "LogTensorStats",
       .statistics = statistics_named({"min", "max", "mean", "std", "l1_norm", "l2_norm"}),
       .any_case = true},
      std::string("\n      in upper or lower case;") + std::string(kMoreOfPlugins),
      std::move(plugin));
  // No layer reads the tensor, so counters are not recorded with it.
  description.recorded = [](const config::Selection& selection) {
    std::vector<std::string> names;
    for (const StatisticName& name : selection.options_as<StatisticsOptions>().statistics) {
      names.push_back(format_statistic_name(name));
    }
    return names;
  };
  return description;
}

std::vector<config::FeatureDescription> low_precision_stats_descriptions() {
  return {fp8_stats_description(), nvfp4_stats_description()};
}

config::FeatureDescription scale_health_description() {
  config::FeatureDescription description{
      .feature_namespace = std::string(config::kTelensNamespace),
      .name = "ScaleHealth",
      .summary = "measures whether the scale of a tensor still fits",
      .doc =
          "Delayed scaling casts a tensor with a scale from earlier iterations. Records how well\n"
          "this scale fits the tensor:\n"
          "  scale_staleness   above 0 if the tensor has outgrown its scale; -3 if the tensor is\n"
          "                    three bits below it\n"
          "  scale_headroom    free bits above the amax; below 0 if the largest values are\n"
          "                    clipped or rounded down to the end of the range\n"
          "  scale_age         increases while the history is not updated (a region without\n"
          "                    grad)\n"
          "Over micro-batches and ranks, the worst value counts: the largest staleness, jump (up\n"
          "or down) and age, and the smallest headroom. stale_saturated% covers all their\n"
          "elements. A tensor of zeros fits any scale and has neither staleness nor headroom. If\n"
          "a tensor contains NaN, both are NaN. Current scaling has an age of 0. Its headroom is\n"
          "0 up to rounding, or below 1 with power-of-2 scales. Block-scaled recipes are skipped\n"
          "with a warning; use BlockTelemetry for them.",
      .example =
          "ScaleHealth:\n"
          "  enabled: True\n"
          "  tensors: [activation, weight, gradient]\n"
          "  freq: 10\n",
      .selects = config::Selects::tensors,
      .tensors = config::gemm_input_names(),
      .can_be_kept = true,
      .names_evaluation = true,
      .attached = "only for torchao's layers with one scale per tensor",
  };
  StatisticsRules rules{.feature = "ScaleHealth",
                        .statistics = statistics_from(StatisticSource::scale),
                        .all_by_default = true};
  describe_statistics(description, rules);
  return description;
}

}  // namespace telens::features
