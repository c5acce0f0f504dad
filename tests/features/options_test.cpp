#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include "core/base/error.h"
#include "features/builtin_options.h"
#include "features/fake_quant/fake_quant_options.h"
#include "features/log_stats/log_stats_options.h"
#include "hooks/config/config.h"
#include "hooks/config/suggestions.h"

namespace telens::features {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

const config::Descriptions& descriptions() {
  static const config::Descriptions kDescriptions = [] {
    config::Descriptions made;
    made.add(log_tensor_stats_description());
    made.add(base_log_tensor_stats_description());
    for (config::FeatureDescription& each : low_precision_stats_descriptions()) {
      made.add(std::move(each));
    }
    made.add(fake_quant_description());
    made.add(disable_fp8_gemm_description());
    made.add(disable_fp8_layer_description());
    return made;
  }();
  return kDescriptions;
}

// Returns a section for all layers with one feature, "Name: {...}", in a namespace.
config::Config load(std::string_view feature_namespace, std::string_view feature) {
  return config::load_config_text(
      fmt::format("s: {{enabled: on, layers: {{layer_types: all}}, {}: {{\n{}}}}}",
                  feature_namespace, feature),
      "f", descriptions());
}

std::string get_error(std::string_view feature) {
  try {
    load("transformer_engine", feature);
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    return text.substr(text.find("': ", text.find("feature")) + 3);
  }
  return "";
}

template <typename Options>
Options get_options(std::string_view feature_namespace, std::string_view feature) {
  const config::Config config = load(feature_namespace, feature);
  return config.entries_for("x").at(0)->selections.at(0).options_as<Options>();
}

std::vector<std::string> tensor_statistics() {
  std::vector<std::string> names = get_names(statistics_from(StatisticSource::tensor));
  for (const StatisticSource source : {StatisticSource::blocks, StatisticSource::scores}) {
    std::ranges::move(get_names(statistics_from(source)), std::back_inserter(names));
  }
  return names;
}

std::vector<std::string> names(const std::vector<StatisticName>& statistics) {
  std::vector<std::string> names;
  for (const StatisticName& name : statistics) names.push_back(format_statistic_name(name));
  return names;
}

TEST(LogTensorStatsOptions, take_every_statistic_of_the_high_precision_tensor) {
  const std::vector<std::string> all = tensor_statistics();
  const auto options = get_options<StatisticsOptions>(
      "transformer_engine",
      fmt::format("LogTensorStats: {{enabled: on, tensors: dgrad, stats: [{}]}}",
                  fmt::join(all, ", ")));
  EXPECT_THAT(names(options.statistics), SizeIs(all.size()));
}

TEST(LogTensorStatsOptions, a_blockwise_range_is_a_mapping_with_defaults) {
  const auto options = get_options<StatisticsOptions>(
      "transformer_engine",
      "LogTensorStats: {enabled: on, tensors: weight, stats: [{max_blockwise_dynamic_range: "
      "{block_size: 16, dims: 2}}, max_blockwise_dynamic_range: {}, max_blockwise_dynamic_range, "
      "min, min]}");
  EXPECT_THAT(names(options.statistics),
              ElementsAre("max_blockwise_dynamic_range_block_size_16_dims_2",
                          "max_blockwise_dynamic_range_block_size_32_dims_1", "min"));
}

TEST(LogTensorStatsOptions, base_namespace_accepts_any_case_and_tensor) {
  const auto options = get_options<StatisticsOptions>(
      "base", "LogTensorStats: {enabled: on, tensors: logits, stats: [Min, L2_NORM]}");
  EXPECT_THAT(names(options.statistics), ElementsAre("min", "l2_norm"));
}

TEST(LogFp8TensorStatsOptions, take_every_statistic_of_a_cast_with_and_without_recipe) {
  for (const char* feature : {"LogFp8TensorStats", "LogFp8Stats"}) {
    const auto options = get_options<StatisticsOptions>(
        "transformer_engine",
        fmt::format("{}: {{enabled: on, tensors: weight, stats: [underflows%, overflows%, "
                    "saturated, scale_inv_min, scale_inv_max, mse, fp8_current_scaling_mse, "
                    "fp8_delayed_scaling_overflows%]}}",
                    feature));
    EXPECT_EQ(options.statistics.size(), 8U);
    EXPECT_EQ(options.statistics[6].what_if, RecipeId::fp8_current_scaling);
    EXPECT_EQ(options.statistics[5].what_if, std::nullopt);
  }
}

TEST(LogFp8TensorStatsOptions, take_block_recipes_and_their_columnwise_copies) {
  const auto options = get_options<StatisticsOptions>(
      "transformer_engine",
      "LogFp8TensorStats: {enabled: on, tensors: weight, stats: [mse_columnwise, mxfp8_mse, "
      "mxfp8_scale_inv_min_columnwise, fp8_block_scaling_underflows%_columnwise]}");
  EXPECT_THAT(names(options.statistics),
              ElementsAre("mse_columnwise", "mxfp8_mse", "mxfp8_scale_inv_min_columnwise",
                          "fp8_block_scaling_underflows%_columnwise"));
}

TEST(LogNvfp4TensorStatsOptions, are_logged_with_the_recipe_before_the_name) {
  const auto options = get_options<StatisticsOptions>(
      "transformer_engine",
      "LogNvfp4TensorStats: {enabled: on, tensors: weight, stats: [underflows%, mse, nvfp4_mse, "
      "mse_columnwise]}");
  EXPECT_THAT(names(options.statistics),
              ElementsAre("nvfp4_underflows%", "nvfp4_mse", "nvfp4_mse_columnwise"));
}

TEST(FakeQuantOptions, name_a_format_of_elements_and_of_blocks) {
  const auto options_named = [](std::string_view name) {
    const auto options = get_options<FakeQuantOptions>(
        "transformer_engine",
        fmt::format("FakeQuant: {{enabled: on, gemms: fprop, tensors: weight, quant_format: {}}}",
                    name));
    EXPECT_EQ(options.name(), name);
    return options;
  };
  using Options = FakeQuantOptions;
  EXPECT_EQ(options_named("FP8E4M3"), (Options{FormatId::e4m3}));
  EXPECT_EQ(options_named("FP8E5M2"), (Options{FormatId::e5m2}));
  EXPECT_EQ(options_named("MXFP8E4M3"), (Options{FormatId::e4m3, RecipeId::mxfp8}));
  EXPECT_EQ(options_named("MXFP8E5M2"), (Options{FormatId::e5m2, RecipeId::mxfp8}));
  EXPECT_EQ(options_named("FP8BLOCKE4M3"), (Options{FormatId::e4m3, RecipeId::fp8_block_scaling}));
  EXPECT_EQ(options_named("FP8BLOCKE5M2"), (Options{FormatId::e5m2, RecipeId::fp8_block_scaling}));
  EXPECT_EQ(options_named("NVFP4"), (Options{FormatId::e2m1, RecipeId::nvfp4}));
  EXPECT_EQ(options_named("MXFP6E3M2"), (Options{FormatId::e3m2, RecipeId::mxfp6_e3m2}));
  EXPECT_EQ(options_named("MXFP6E2M3"), (Options{FormatId::e2m3, RecipeId::mxfp6_e2m3}));
}

struct Mistake {
  const char* feature;
  std::string error;
};

const Mistake kMistakes[] = {
    {"FakeQuant: {enabled: on, gemms: fprop, tensors: weight}",
     "'quant_format' is missing; it must be a string"},
    {"FakeQuant: {enabled: on, gemms: fprop, tensors: weight, quant_format: E4M3}",
     "'quant_format' cannot be 'E4M3' (did you mean 'FP8E4M3'?); expected one of "
     "'FP8E4M3', 'FP8E5M2', 'MXFP8E4M3', 'MXFP8E5M2', 'FP8BLOCKE4M3', 'FP8BLOCKE5M2', 'NVFP4', "
     "'MXFP6E3M2', 'MXFP6E2M3'"},
    {"FakeQuant: {enabled: on, gemms: fprop, tensors: weight, quant_format: nvfp8}",
     "'quant_format' cannot be 'nvfp8' (did you mean 'NVFP4'?); expected one of "
     "'FP8E4M3', 'FP8E5M2', 'MXFP8E4M3', 'MXFP8E5M2', 'FP8BLOCKE4M3', 'FP8BLOCKE5M2', 'NVFP4', "
     "'MXFP6E3M2', 'MXFP6E2M3'"},
    {"FakeQuant: {enabled: on, gemms: fprop, tensors: weight, quant_format: mxfp8_e4m3}",
     "'quant_format' cannot be 'mxfp8_e4m3' (did you mean 'MXFP8E4M3'?); expected one of "
     "'FP8E4M3', 'FP8E5M2', 'MXFP8E4M3', 'MXFP8E5M2', 'FP8BLOCKE4M3', 'FP8BLOCKE5M2', 'NVFP4', "
     "'MXFP6E3M2', 'MXFP6E2M3'"},
    {"FakeQuant: {enabled: on, gemms: fprop, tensors: weight, quant_format: 8}",
     "'quant_format' must be a string, not the number 8"},
    {"LogTensorStats: {enabled: on, tensors: weight}", "'stats' is missing; it must be a list"},
    {"LogTensorStats: {enabled: on, tensors: weight, stats: null}",
     "'stats' must be a list, not nothing (null)"},
    {"LogTensorStats: {enabled: on, tensors: weight, stats: [1]}",
     "an item of 'stats' must be a name, or a mapping such as "
     "{max_blockwise_dynamic_range: {block_size: 32, dims: 1}}, not the number 1"},
    {"LogTensorStats: {enabled: on, tensors: weight, stats: [meen]}",
     "unknown statistic 'meen' (did you mean 'mean'?); LogTensorStats takes " +
         config::quoted_list(tensor_statistics())},
    {"LogFp8TensorStats: {enabled: on, tensors: weight, stats: [min]}",
     "LogFp8TensorStats has no statistic 'min'; transformer_engine.LogTensorStats has "
     "it. Expected one of 'underflows%', 'overflows%', 'saturated', 'scale_inv_min', "
     "'scale_inv_max', 'mse'"},
    {"LogTensorStats: {enabled: on, tensors: weight, stats: [mxfp8_min]}",
     "'mxfp8_min': LogTensorStats reads the high-precision tensor; only "
     "LogFp8TensorStats takes a recipe or '_columnwise'. Write 'min'"},
    {"LogTensorStats: {enabled: on, tensors: weight, stats: [{min: {}}]}",
     "'min' takes no options; write it without the colon"},
    {"LogTensorStats: {enabled: on, tensors: weight, stats: "
     "[{max_blockwise_dynamic_range: {block_size: 0}}]}",
     "'block_size' must be an integer of at least 1, not the number 0"},
    {"LogTensorStats: {enabled: on, tensors: weight, stats: "
     "[{max_blockwise_dynamic_range: {dims: 3}}]}",
     "'dims' must be 1 (pieces of a row) or 2 (squares), not the number 3"},
    {"LogTensorStats: {enabled: on, tensors: weight, stats: "
     "[{max_blockwise_dynamic_range: {blocksize: 3}}]}",
     "unknown key 'blocksize' (did you mean 'block_size'?); expected 'block_size', "
     "'dims'"},
    {"LogTensorStats: {enabled: on, tensors: weight, stats: "
     "[{max_blockwise_dynamic_range: 32}]}",
     "expected a mapping with 'block_size' and 'dims', not the number 32"},
    {"LogFp8TensorStats: {enabled: on, tensors: weight, stats: [underflow%]}",
     "unknown statistic 'underflow%' (did you mean 'underflows%'?); LogFp8TensorStats "
     "takes 'underflows%', 'overflows%', 'saturated', 'scale_inv_min', 'scale_inv_max', "
     "'mse', each with or without a recipe before it"},
    {"LogFp8TensorStats: {enabled: on, tensors: weight, stats: [nvfp4_mse]}",
     "'nvfp4_mse': LogFp8TensorStats has nothing of the recipe 'nvfp4', but LogNvfp4TensorStats "
     "has; expected no recipe (the running one) or 'fp8_delayed_scaling', 'fp8_current_scaling', "
     "'mxfp8', 'fp8_block_scaling', 'mxfp6_e3m2', 'mxfp6_e2m3'"},
    {"LogFp8TensorStats: {enabled: on, tensors: weight, stats: "
     "[fp8_current_scaling_mse_columnwise]}",
     "'fp8_current_scaling_mse_columnwise': the columnwise copy has separate values only under a "
     "block recipe; write 'fp8_current_scaling_mse'"},
    {"LogNvfp4TensorStats: {enabled: on, tensors: weight, stats: [mxfp8_mse]}",
     "'mxfp8_mse': LogNvfp4TensorStats has nothing of the recipe 'mxfp8', but LogFp8TensorStats "
     "has; expected no recipe or 'nvfp4'"},
    {"LogNvfp4TensorStats: {enabled: on, tensors: weight, stats: [scale_inv_min]}",
     "LogNvfp4TensorStats has no statistic 'scale_inv_min'; transformer_engine.LogFp8TensorStats "
     "has it. Expected one of 'underflows%', 'mse'"},
    {"LogFp8TensorStats: {enabled: on, tensors: output, stats: mse}",
     "the feature does not serve the tensor 'output'; LogFp8TensorStats takes "
     "'activation', 'weight', 'gradient', 'query', 'key', 'value', 'attention_output', "
     "'query_gradient', 'key_gradient', 'value_gradient', 'attention_output_gradient'"}};

TEST(OptionMistakes, list_the_valid_values) {
  for (const Mistake& mistake : kMistakes) {
    EXPECT_EQ(get_error(mistake.feature), mistake.error) << mistake.feature;
  }
}

TEST(BuiltInDescriptions, have_examples_that_load) {
  for (const auto& description : descriptions().all()) {
    const std::string name = qualified_name(*description);
    std::string yaml = "s:\n  enabled: True\n  layers: {layer_types: [all]}\n";
    yaml += "  " + description->feature_namespace + ":\n";
    std::istringstream lines(description->example);
    for (std::string line; std::getline(lines, line);) yaml += "    " + line + '\n';
    const config::Config config = config::load_config_text(yaml, name, descriptions());
    EXPECT_EQ(config.entries_for("x").at(0)->description, description) << name;
    EXPECT_FALSE(description->summary.empty()) << name;
  }
}

}  // namespace
}  // namespace telens::features
