#include "features/log_stats/log_stats_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>

#include "hooks/config/feature_description.h"
#include "hooks/config/selection.h"
#include "hooks/config/suggestions.h"

namespace telens::features {
namespace {

using config::ErrorList;
using config::Value;

constexpr std::string_view kStats = "stats";
constexpr std::string_view kBlockSize = "block_size";
constexpr std::string_view kDims = "dims";

std::vector<std::string> names_taken(const StatisticsRules& rules,
                                     const config::StatisticDescriptions* plugin) {
  std::vector<std::string> names = get_names(rules.statistics);
  if (plugin == nullptr) return names;
  for (std::string& each : plugin->names()) names.push_back(std::move(each));
  return names;
}

// A line for each: "which of\n      min: smallest element".
std::string get_docs(std::span<const StatisticId> statistics) {
  std::string docs = "which of";
  for (const StatisticId each : statistics) {
    docs += fmt::format("\n      {}: {};", each->name, each->doc);
  }
  return docs;
}

std::vector<std::string> names_to_suggest(const StatisticsRules& rules,
                                          const config::StatisticDescriptions* plugin) {
  std::vector<std::string> names = names_taken(rules, plugin);
  for (const RecipeId recipe : rules.recipes) {
    for (const StatisticId statistic : rules.statistics) {
      names.push_back(fmt::format("{}_{}", get_name(recipe), statistic->name));
    }
  }
  return names;
}

std::string_view feature_with(StatisticSource source) {
  if (source == StatisticSource::scale) return "telens.ScaleHealth";
  return source == StatisticSource::cast ? "transformer_engine.LogFp8TensorStats"
                                         : "transformer_engine.LogTensorStats";
}

// Returns false, after adding an error with the reason, for a well-formed name that the feature
// does not accept.
bool check_name(const StatisticName& name, const Value& written, const StatisticsRules& rules,
                ErrorList& errors) {
  if (name.statistic->source() == StatisticSource::plugin) return true;
  const config::Location& where = written.location();
  const std::string text = format_statistic_name(name);
  if (std::ranges::find(rules.statistics, name.statistic) == rules.statistics.end()) {
    errors.add(where, "{} has no statistic '{}'; {} has it. Expected one of {}", rules.feature,
               name.statistic->name, feature_with(name.statistic->source()),
               config::quoted_list(get_names(rules.statistics)));
    return false;
  }
  if (rules.recipes.empty() && (name.what_if || name.columnwise)) {
    errors.add(where,
               "'{}': {} reads the high-precision tensor; only LogFp8TensorStats takes a "
               "recipe or '_columnwise'. Write '{}'",
               text, rules.feature, name.statistic->name);
    return false;
  }
  if (name.what_if && std::ranges::find(rules.recipes, *name.what_if) == rules.recipes.end()) {
    std::vector<std::string> recipes;
    for (const RecipeId recipe : rules.recipes) recipes.emplace_back(get_name(recipe));
    errors.add(where, "'{}': {} has nothing of the recipe '{}', but {} has; expected {} or {}",
               text, rules.feature, get_name(*name.what_if), rules.other_recipes_in,
               rules.implied ? "no recipe" : "no recipe (the running one)",
               config::quoted_list(recipes));
    return false;
  }
  if (name.columnwise && name.what_if && !is_block_recipe(*name.what_if)) {
    errors.add(where,
               "'{}': the columnwise copy has separate values only under a block recipe; "
               "write '{}'",
               text, text.substr(0, text.rfind('_')));
    return false;
  }
  return true;
}

// {block_size: 32, dims: 1}
std::optional<BlockShape> parse_block(const Value& value, ErrorList& errors) {
  BlockShape block;
  if (value.is_null()) return block;
  if (!value.is_map()) {
    errors.add(value.location(), "expected a mapping with '{}' and '{}', not {}", kBlockSize, kDims,
               describe(value));
    return std::nullopt;
  }
  const std::vector<std::string> keys{std::string(kBlockSize), std::string(kDims)};
  const std::size_t errors_before = errors.size();
  for (const config::MapEntry& entry : value.as_map()) {
    const bool is_positive = entry.value.is_integer() && entry.value.as_integer() >= 1;
    if (entry.key == kBlockSize) {
      if (is_positive) block.size = entry.value.as_integer();
    } else if (entry.key == kDims) {
      if (is_positive && entry.value.as_integer() <= 2) {
        block.dims = static_cast<int>(entry.value.as_integer());
        continue;
      }
      errors.add(entry.value.location(), "'{}' must be 1 (pieces of a row) or 2 (squares), not {}",
                 kDims, describe(entry.value));
      continue;
    } else {
      errors.add(entry.key_location, "unknown key '{}'{}; expected {}", entry.key,
                 config::suggestion(entry.key, keys), config::quoted_list(keys));
      continue;
    }
    if (!is_positive) {
      errors.add(entry.value.location(), "'{}' must be an integer of at least 1, not {}",
                 kBlockSize, describe(entry.value));
    }
  }
  if (errors.size() != errors_before) return std::nullopt;
  return block;
}

std::optional<StatisticName> parse_item(const Value& item, const StatisticsRules& rules,
                                        ErrorList& errors,
                                        const config::StatisticDescriptions* plugin) {
  const bool is_mapping = item.is_map() && item.as_map().size() == 1;
  if (!item.is_string() && !is_mapping) {
    errors.add(item.location(),
               "an item of 'stats' must be a name, or a mapping such as "
               "{{max_blockwise_dynamic_range: {{block_size: 32, dims: 1}}}}, not {}",
               describe(item));
    return std::nullopt;
  }
  std::string text = is_mapping ? item.as_map().front().key : item.as_string();
  if (rules.any_case) {
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  }
  std::optional<StatisticName> name = parse_statistic_name(text, plugin);
  if (!name) {
    std::vector<std::string> known;  // empty if the error list is full
    std::vector<std::string> taken;
    if (errors.has_room()) {
      known = names_to_suggest(rules, plugin);
      taken = names_taken(rules, plugin);
    }
    errors.add(item.location(), "unknown statistic '{}'{}; {} takes {}{}", text,
               config::suggestion(text, known), rules.feature, config::quoted_list(taken),
               !rules.recipes.empty() ? ", each with or without a recipe before it" : "");
    return std::nullopt;
  }
  if (!check_name(*name, item, rules, errors)) return std::nullopt;
  if (is_mapping && !name->block) {
    errors.add(item.location(), "'{}' takes no options; write it without the colon", text);
    return std::nullopt;
  }
  if (is_mapping) {
    const auto block = parse_block(item.as_map().front().value, errors);
    if (!block) return std::nullopt;
    name->block = block;
  }
  return name;
}

}  // namespace

std::vector<StatisticName> parse_statistics(const Value& stats, const StatisticsRules& rules,
                                            ErrorList& errors,
                                            const config::StatisticDescriptions* plugin) {
  std::vector<StatisticName> names;
  std::unordered_set<std::string> known;
  for (const Value& item : config::as_list(stats)) {
    auto name = parse_item(item, rules, errors, plugin);
    if (!name) continue;
    if (!name->what_if) name->what_if = rules.implied;
    if (known.insert(format_statistic_name(*name)).second) names.push_back(*name);
  }
  return names;
}

std::vector<std::string> recorded_names(std::span<const StatisticName> statistics,
                                        std::string_view tensor) {
  const std::optional<TensorName> known = tensor_from_name(tensor);
  std::vector<std::string> names;
  std::unordered_set<std::string> added;
  const auto add = [&](const StatisticName& name) {
    std::string text = known ? format_statistic_name(name, *known) : format_statistic_name(name);
    if (added.insert(text).second) names.push_back(std::move(text));
  };
  std::ranges::for_each(statistics, add);
  for (const StatisticId counter : counters_from(StatisticSource::tensor)) add({counter});
  for (StatisticName name : statistics) {
    const StatisticSource source = name.statistic->source();
    if (source != StatisticSource::cast && source != StatisticSource::scale) continue;
    for (const StatisticId counter : counters_from(StatisticSource::cast)) {
      name.statistic = counter;
      add(name);
    }
  }
  return names;
}

void describe_statistics(config::FeatureDescription& description, const StatisticsRules& rules,
                         std::string_view more, config::StatisticDescriptionsPtr plugin) {
  config::Parameter& stats = description.parameters.emplace_back(
      config::Parameter{.name = std::string(kStats),
                        .type = config::ParameterType::list,
                        .required = !rules.all_by_default,
                        .doc = get_docs(rules.statistics) + std::string(more)});
  if (rules.all_by_default) {
    Value::List all;
    for (const std::string& name : get_names(rules.statistics)) all.emplace_back(name);
    stats.default_value = std::move(all);
  }
  stats.parse = [rules, plugin](const Value& value, ErrorList& errors) {
    if (rules.all_by_default) config::check_not_empty(value, kStats, errors);
    return config::make_options(
        StatisticsOptions{parse_statistics(value, rules, errors, plugin.get()), plugin});
  };
  description.parse = [](const config::ParameterValues& parameters, ErrorList&) {
    return parameters.made(kStats);
  };
  description.names_statistics = plugin != nullptr;
  description.recorded = [](const config::Selection& selection) {
    return recorded_names(selection.options_as<StatisticsOptions>().statistics,
                          selection.tensor.value_or(""));
  };
}

namespace {

constexpr std::string_view kMoreOfPlugins = "\n      and statistics that a plugin defines";

// LogFp8TensorStats leaves FP4 to a separate feature. Delayed scaling requires the history of the
// running recipe; whether delayed scaling runs is known only when a layer runs.
std::vector<RecipeId> recipes_in_fp8() {
  std::vector<RecipeId> recipes;
  for (const RecipeId recipe : kAllRecipes) {
    if (only_element(recipe) != FormatId::e2m1) recipes.push_back(recipe);
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
          "measures what that recipe would do: in its only format (mxfp6_e3m2_, mxfp6_e2m3_),\n"
          "else in the FP8 format of the running recipe, else in E4M3. Skips a layer that is not\n"
          "quantized, with a warning. For block-scaled recipes the row-wise copy is measured;\n"
          "append _columnwise for the other one. If only one of a tensor's GEMMs is quantized,\n"
          "its copy is measured. For tensors of an attention, only statistics with a recipe as\n"
          "prefix are available.",
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
