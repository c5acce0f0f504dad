// telens plan: previews the selections and the record volume of a debug config.
#include "hooks/config/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "features/builtin_options.h"
#include "hooks/statistics/statistic_name.h"
#include "inspector_cli/commands/options.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/terminal/table.h"
#include "inspector_cli/terminal/terminal.h"

namespace telens::cli {
namespace {

struct PlanOptions {
  std::string config;
  std::string layers;
  std::optional<std::int64_t> iteration;
  std::vector<std::string> plugin_features;
  std::vector<std::string> plugin_statistics;
  bool each_layer = false;
  TableOptions table;
};

config::StatisticDescriptionsPtr known_statistics(const std::vector<std::string>& of_plugins) {
  const auto statistics = std::make_shared<config::StatisticDescriptions>(
      [](std::string_view name) { return parse_statistic_name(name).has_value(); });
  for (const std::string& name : of_plugins) {
    statistics->add({.name = name, .owner = "--plugin-statistic"});
  }
  return statistics;
}

// Returns the built-in features and those named by --plugin-feature, whose options are not checked.
config::Descriptions known_features(const PlanOptions& options) {
  config::Descriptions descriptions =
      features::builtin_descriptions(known_statistics(options.plugin_statistics));
  for (const std::string& name : options.plugin_features) {
    const auto dot = name.find('.');
    if (dot == std::string::npos || dot == 0 || dot + 1 == name.size()) {
      raise<UsageError>("--plugin-feature '{}': expected namespace.Name, such as telens.MyFeature",
                        name);
    }
    descriptions.add({.feature_namespace = name.substr(0, dot),
                      .name = name.substr(dot + 1),
                      .opaque = true,
                      .owner = "--plugin-feature"});
  }
  return descriptions;
}

Table make_table(const config::Plan& plan, std::optional<std::int64_t> iteration) {
  Table table({"layer", "gemm", "tensor", "feature", "section", "when"});
  for (const config::PlanRow& row : plan.rows) {
    if (iteration && !row.due(*iteration)) continue;
    table.add({row.layer, row.gemm(), row.tensor(), config::qualified_name(*row.entry->description),
               row.entry->section, row.when()});
  }
  return table;
}

// The GEMMs and tensors of a layer that one entry of the config selects, in the order of the plan.
struct Effect {
  std::vector<std::string> gemms, tensors;
};

// All layers on which an entry has the same effect.
struct EffectGroup {
  const config::PlanRow* row;  // of the first layer
  Effect effect;
  std::vector<std::string> layers;
};

void add_once(std::vector<std::string>& names, const std::string& name) {
  if (!name.empty() && std::ranges::find(names, name) == names.end()) names.push_back(name);
}

// Groups rows by entry, schedule, GEMMs and tensors.
std::vector<EffectGroup> group_layers(const config::Plan& plan,
                                      std::optional<std::int64_t> iteration) {
  using Key = std::tuple<const config::FeatureEntry*, std::string, std::string>;
  std::map<Key, Effect> effects;
  std::vector<std::pair<Key, const config::PlanRow*>> order;
  for (const config::PlanRow& row : plan.rows) {
    if (iteration && !row.due(*iteration)) continue;
    const auto [at, is_new] = effects.try_emplace(Key{row.entry, row.when(), row.layer});
    if (is_new) order.emplace_back(at->first, &row);
    add_once(at->second.gemms, row.gemm());
    add_once(at->second.tensors, row.tensor());
  }
  std::vector<EffectGroup> groups;
  for (const auto& [key, row] : order) {
    const Effect& effect = effects.at(key);
    const auto same = std::ranges::find_if(groups, [&](const EffectGroup& group) {
      return group.row->entry == row->entry && group.row->when() == row->when() &&
             group.effect.gemms == effect.gemms && group.effect.tensors == effect.tensors;
    });
    if (same != groups.end()) {
      same->layers.push_back(row->layer);
    } else {
      groups.push_back({row, effect, {row->layer}});
    }
  }
  return groups;
}

// Returns "12 of 13: model.layers.0.fc1, model.layers.0.fc2, ...".
std::string describe_layers(const std::vector<std::string>& layers, std::size_t all) {
  constexpr std::size_t kMost = 3;
  if (layers.size() == all) return fmt::format("all {}", all);
  const std::size_t shown = std::min(layers.size(), kMost);
  const std::vector<std::string> first(layers.begin(),
                                       layers.begin() + static_cast<std::ptrdiff_t>(shown));
  return fmt::format("{} of {}: {}{}", layers.size(), all, fmt::join(first, ", "),
                     shown < layers.size() ? ", ..." : "");
}

Table make_grouped_table(const config::Plan& plan, std::optional<std::int64_t> iteration) {
  Table table({"section", "feature", "gemms", "tensors", "when", "layers"});
  for (const EffectGroup& group : group_layers(plan, iteration)) {
    table.add({group.row->entry->section, config::qualified_name(*group.row->entry->description),
               fmt::format("{}", fmt::join(group.effect.gemms, ", ")),
               fmt::format("{}", fmt::join(group.effect.tensors, ", ")), group.row->when(),
               describe_layers(group.layers, plan.layers.size())});
  }
  return table;
}

std::string load_text(const config::Plan& plan, std::optional<std::int64_t> iteration) {
  if (!iteration) return config::estimate_load(plan).text();
  return fmt::format("{} records in iteration {}, if every layer runs quantized{}",
                     config::records_in(plan, *iteration), *iteration,
                     config::about_waiting(config::estimate_load(plan).waiting));
}

Json text_list(const std::vector<std::string>& texts) {
  Json list = Json::array();
  for (const std::string& text : texts) list.push_back(json_text(text));
  return list;
}

Json to_json(const config::Plan& plan, std::optional<std::int64_t> iteration,
             const TableOptions& options) {
  const config::RecordLoad load = config::estimate_load(plan);
  return {{"plan", arranged(make_table(plan, iteration), options).json()},
          {"warnings", text_list(plan.warnings)},
          {"load",
           {{"average_records", json_number(load.average)},
            {"first", load.first},
            {"last", load.last ? Json(*load.last) : Json()},
            {"most_records", load.most},
            {"busiest", load.busiest},
            {"bytes_per_record", json_number(config::kBytesPerRecord)},
            {"not_counted", text_list(load.not_counted)},
            {"waiting", text_list(load.waiting)}}}};
}

void print_summary(const config::Plan& plan, std::optional<std::int64_t> iteration) {
  fmt::print("\n{} of {} layers have features\n{}\n", plan.touched_layers(), plan.layers.size(),
             printable(load_text(plan, iteration)));
}

void run_plan(const PlanOptions& options) {
  const config::Config config = config::load_config_file(options.config, known_features(options));
  const LayerNames layers = read_layer_names(options.layers);
  config::Plan plan = config::make_plan(config, layers.names);
  if (layers.are_recorded && plan.warnings.size() > config.warnings().size()) {
    plan.warnings.push_back(fmt::format(
        "only the layers that {} recorded are known; selectors may match layers that were not "
        "recorded: pass all names in a file",
        options.layers));
  }
  if (options.table.format == Format::json) {
    fmt::print("{}\n", json_lines(to_json(plan, options.iteration, options.table)));
    return;
  }
  for (const std::string& warning : plan.warnings) {
    note("warning: " + warning);
  }
  const bool is_grouped = options.table.format == Format::table && !options.each_layer;
  const Table table = is_grouped ? make_grouped_table(plan, options.iteration)
                                 : make_table(plan, options.iteration);
  if (table.size() > 0 || options.table.format == Format::csv) {
    print_table(table, options.table);
  }
  if (options.table.format == Format::table) print_summary(plan, options.iteration);
}

}  // namespace

void add_plan(CLI::App& app) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand("plan",
                                         "Preview the selections and the record volume of a debug "
                                         "config.");
  command->add_option("CONFIG", options->config, "The debug config, a YAML file")->required();
  command
      ->add_option("--layers", options->layers,
                   "The layers: a file with one name per line, - for standard input, or a run")
      ->type_name("LAYERS")
      ->required();
  command->add_option("--iteration", options->iteration, "Only features that run in this iteration")
      ->type_name("N")
      ->check(whole_number_from(0, INT64_MAX));
  command
      ->add_option("--plugin-feature", options->plugin_features,
                   "A plugin's feature that the config names; its options are not checked; may be "
                   "repeated")
      ->type_name("NAMESPACE.NAME");
  command
      ->add_option("--plugin-statistic", options->plugin_statistics,
                   "A plugin's statistic that the config names; may be repeated")
      ->type_name("NAME");
  command->add_flag("--each-layer", options->each_layer,
                    "One row per layer, GEMM and tensor, as csv and json have it");
  add_table_options(*command, options->table);
  command->footer(
      "Examples:\n"
      "  telens plan debug.yaml --layers names.txt\n"
      "  telens plan debug.yaml --layers logs/telens/20260101-120000 --iteration 100\n"
      "  printf 'layers.0.fc1\\nlayers.1.fc1\\n' | telens plan debug.yaml --layers -");
  command->callback([options] { run_plan(*options); });
}

}  // namespace telens::cli
