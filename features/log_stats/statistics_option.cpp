#include "features/log_stats/statistics_option.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <unordered_set>
#include <utility>

#include "hooks/config/parameter_check.h"
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
    std::vector<std::string> known;  // empty if the list of errors is full
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

}  // namespace telens::features
