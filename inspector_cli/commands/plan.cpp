// telens plan: what a configuration would do to layers, and what it would record.
#include "hooks/config/plan.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/error.h"
#include "features/builtin_options.h"
#include "features/statistics/statistic_name.h"
#include "hooks/config/record_load.h"
#include "inspector_cli/commands/layer_names.h"
#include "inspector_cli/commands/number_options.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/commands/table_options.h"
#include "inspector_cli/terminal/json.h"
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

// Built-in features, and names of features and statistics that only a plugin knows, unchecked.
config::Descriptions known_features(const PlanOptions& options) {
  config::Descriptions descriptions =
      features::builtin_descriptions(known_statistics(options.plugin_statistics));
  for (const std::string& name : options.plugin_features) {
    const auto dot = name.find('.');
    if (dot == std::string::npos || dot == 0 || dot + 1 == name.size()) {
      raise<UsageError>("--plugin-feature '{}': expected namespace.Name, as in telens.MyFeature",
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
             load_text(plan, iteration));
}

void run_plan(const PlanOptions& options) {
  const config::Config config = config::load_config_file(options.config, known_features(options));
  const LayerNames layers = read_layer_names(options.layers);
  config::Plan plan = config::make_plan(config, layers.names);
  if (layers.are_recorded && plan.warnings.size() > config.warnings().size()) {
    plan.warnings.push_back(fmt::format(
        "only the layers that {} recorded are known here; a selector may fit others, which ran "
        "without being recorded: give their names in a file",
        options.layers));
  }
  if (options.table.format == Format::json) {
    fmt::print("{}\n", json_lines(to_json(plan, options.iteration, options.table)));
    return;
  }
  for (const std::string& warning : plan.warnings) {
    note("warning: " + warning);
  }
  const Table table = make_table(plan, options.iteration);
  if (table.size() > 0 || options.table.format == Format::csv) {
    print_table(table, options.table);
  }
  if (options.table.format == Format::table) print_summary(plan, options.iteration);
}

}  // namespace

void add_plan(CLI::App& app) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand(
      "plan",
      "What a debug config would do to layers of these names, and how much it would record.");
  command->add_option("CONFIG", options->config, "The config, a YAML file")->required();
  command
      ->add_option("--layers", options->layers,
                   "The layers: a file with one name a line, - for standard input, or a run, for "
                   "those that it recorded")
      ->required();
  command->add_option("--iteration", options->iteration, "Only what is on in this iteration")
      ->check(whole_number_from(0, INT64_MAX));
  command->add_option(
      "--plugin-feature", options->plugin_features,
      "A plugin's feature that the config names, as namespace.Name; its options are "
      "not checked; may be repeated");
  command->add_option("--plugin-statistic", options->plugin_statistics,
                      "A statistic that a plugin defines and the config names; may be repeated");
  add_table_options(*command, options->table);
  command->footer(
      "Examples:\n"
      "  telens plan debug.yaml --layers names.txt\n"
      "  telens plan debug.yaml --layers logs/telens/20260101-120000 --iteration 100\n"
      "  printf 'layers.0.fc1\\nlayers.0.fc2\\n' | telens plan debug.yaml --layers - --format csv");
  command->callback([options] { run_plan(*options); });
}

}  // namespace telens::cli
