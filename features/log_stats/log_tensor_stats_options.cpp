#include "features/log_stats/log_tensor_stats_options.h"

#include <utility>

#include "features/log_stats/statistics_option.h"

namespace telens::features {
namespace {

constexpr StatisticsRules kRules{.feature = "LogTensorStats", .statistics = kTensorStatistics};

// What the peer's base feature has.
constexpr std::array kBaseStatistics{Statistic::min,     Statistic::max,     Statistic::mean,
                                     Statistic::std_dev, Statistic::l1_norm, Statistic::l2_norm};
constexpr StatisticsRules kBaseRules{
    .feature = "LogTensorStats", .statistics = kBaseStatistics, .any_case = true};

}  // namespace

LogTensorStatsOptions LogTensorStatsOptions::from(const config::Value& parameters) {
  // Of the two rules this one accepts every name that either description has let pass.
  StatisticsRules rules = kRules;
  rules.any_case = true;
  config::ErrorList errors;
  LogTensorStatsOptions options{parse_statistics(*parameters.find("stats"), rules, errors,
                                                 &config::StatisticDescriptions::any())};
  errors.raise_if_any();
  return options;
}

config::FeatureDescription log_tensor_stats_description(config::StatisticDescriptionsPtr defined) {
  return {
      .feature_namespace = std::string(config::kTransformerEngineNamespace),
      .name = "LogTensorStats",
      .summary = "statistics of the high-precision tensor",
      .doc =
          "Reads the tensor before quantization and logs one value a statistic. All statistics\n"
          "of a tensor come from one read. With any of them the counters nan, posinf, neginf,\n"
          "nonfinite, zeros and subnormals are recorded too.",
      .example =
          "LogTensorStats:\n"
          "  enabled: True\n"
          "  tensors: [activation, gradient]\n"
          "  stats: [min, max, mean, std, l2_norm, dynamic_range]\n"
          "  freq: 10\n",
      .selects = config::Selects::tensors,
      .tensors = config::all_tensor_names(),
      .parameters = {statistics_parameter(
          kRules,
          "min, max, mean, std (unbiased), l1_norm, l2_norm, numel, nan, posinf, neginf,\n"
          "      nonfinite, zeros, subnormals, cur_amax (max |x|), dynamic_range (log2 of amax "
          "over\n"
          "      the smallest nonzero |x|), or the mapping\n"
          "      max_blockwise_dynamic_range: {block_size: 32, dims: 1 or 2};\n"
          "      or one that a plugin defines",
          std::move(defined))},
      .can_be_kept = true,
      .names_evaluation = true,
      .recorded =
          [](const config::Value& parameters, std::string_view tensor) {
            return recorded_names(LogTensorStatsOptions::from(parameters).statistics, tensor);
          },
  };
}

config::FeatureDescription base_log_tensor_stats_description(
    config::StatisticDescriptionsPtr defined) {
  return {
      .feature_namespace = std::string(config::kBaseNamespace),
      .name = "LogTensorStats",
      .summary = "statistics of a tensor that the program hands to debug.log_tensor_stats()",
      .doc = "Logs at once, in the call. The names of the tensors are the program's own.",
      .example =
          "LogTensorStats:\n"
          "  enabled: True\n"
          "  tensors: [logits]\n"
          "  stats: [min, max, l2_norm]\n",
      .selects = config::Selects::tensors,
      .parameters = {statistics_parameter(
          kBaseRules,
          "min, max, mean, std (unbiased), l1_norm, l2_norm; in any case; or one\n"
          "      that a plugin defines",
          std::move(defined))},
      .recorded =
          [](const config::Value& parameters, std::string_view) {
            std::vector<std::string> names;
            for (const StatisticName& name : LogTensorStatsOptions::from(parameters).statistics) {
              names.push_back(format_statistic_name(name));
            }
            return names;
          },
  };
}

}  // namespace telens::features
