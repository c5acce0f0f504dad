#include "features/log_stats/scale_health_options.h"

#include "features/log_stats/statistics_option.h"
#include "hooks/config/parameter_check.h"

namespace telens::features {
namespace {

constexpr StatisticsRules kRules{.feature = "ScaleHealth", .statistics = kScaleStatistics};

config::Parameter stats_parameter() {
  config::Parameter parameter = statistics_parameter(
      kRules, "which of scale_staleness, scale_headroom, stale_saturated%, scale_jump, scale_age");
  config::Value::List all;
  for (const std::string& name : names_of(kScaleStatistics)) all.emplace_back(name);
  parameter.required = false;
  parameter.default_value = std::move(all);
  parameter.validate = [check = parameter.validate](const config::Value& stats,
                                                    config::ErrorList& errors) {
    config::check_not_empty(stats, "stats", errors);
    check(stats, errors);
  };
  return parameter;
}

}  // namespace

ScaleHealthOptions ScaleHealthOptions::from(const config::Value& parameters) {
  config::ErrorList errors;
  ScaleHealthOptions options{parse_statistics(*parameters.find("stats"), kRules, errors)};
  errors.raise_if_any();
  return options;
}

config::FeatureDescription scale_health_description() {
  return {
      .feature_namespace = std::string(config::kTelensNamespace),
      .name = "ScaleHealth",
      .summary = "whether the scale of a tensor still fits it",
      .doc =
          "Delayed scaling casts a tensor with a scale that earlier iterations made. Records how\n"
          "well that scale fits the tensor as it is now:\n"
          "  scale_staleness   log2(amax now / amax that the scale stands for), which is the\n"
          "                    format's largest value / scale / 2^margin: above 0 the tensor has\n"
          "                    outgrown its scale, at -3 it lies three bits below it\n"
          "  scale_headroom    log2(largest value / scale / amax now): the bits that are free\n"
          "                    above the amax; below 0 the largest values are clipped\n"
          "                    or rounded down to the end of the range\n"
          "  stale_saturated%  finite elements that the cast clipped, in percent of all\n"
          "  scale_jump        log2(scale / scale in the last observed iteration)\n"
          "  scale_age         for how many iterations the amax history has been seen not to be\n"
          "                    updated: 0 where it was since the last observed one; a history "
          "that\n"
          "                    nobody updates (a region without grad) counts up\n"
          "Of several micro-batches and ranks the worst counts: the largest staleness, jump (up\n"
          "or down) and age, the smallest headroom; stale_saturated% is of all their elements. A\n"
          "tensor of zeros fits any scale and has neither staleness nor headroom; with a NaN both\n"
          "are NaN. Current scaling has an age of 0; its headroom is 0 up to rounding, or below 1\n"
          "with scales that are powers of two. A recipe with a scale a block is left out, with a\n"
          "warning; BlockTelemetry is for those.",
      .example =
          "ScaleHealth:\n"
          "  enabled: True\n"
          "  tensors: [activation, weight, gradient]\n"
          "  freq: 10\n",
      .selects = config::Selects::tensors,
      .tensors = config::gemm_input_names(),
      .parameters = {stats_parameter()},
      .can_be_kept = true,
      .names_evaluation = true,
      .recorded =
          [](const config::Value& parameters, std::string_view tensor) {
            return recorded_names(ScaleHealthOptions::from(parameters).statistics, tensor);
          },
  };
}

}  // namespace telens::features
