// telens features: lists the built-in features and their parameters.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "core/base/error.h"
#include "features/builtin_options.h"
#include "hooks/config/feature_description.h"
#include "hooks/config/suggestions.h"
#include "hooks/statistics/catalogue.h"
#include "inspector_cli/commands/options.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/terminal/table.h"

namespace telens::cli {
namespace {

struct FeaturesOptions {
  std::string name;
  bool markdown = false;
  TableOptions table;
};

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

std::vector<std::string> known_names(const config::Descriptions& descriptions) {
  std::vector<std::string> names;
  for (const auto& each : descriptions.all()) {
    names.push_back(config::qualified_name(*each));
    names.push_back(each->name);
    names.insert(names.end(), each->aliases.begin(), each->aliases.end());
  }
  return names;
}

Table get_list(const std::vector<config::FeatureDescriptionPtr>& descriptions) {
  Table table({"feature", "also", "parameters", "does", "attached"});
  for (const auto& each : descriptions) {
    std::vector<std::string> parameters;
    for (const config::Parameter& parameter : each->parameters) {
      parameters.push_back(parameter.name);
    }
    table.add({config::qualified_name(*each), joined(each->aliases), joined(parameters),
               each->summary, config::describe_attached(*each)});
  }
  return table;
}

void explain(const std::vector<config::FeatureDescriptionPtr>& descriptions) {
  for (std::size_t i = 0; i < descriptions.size(); ++i) {
    fmt::print("{}{}", i > 0 ? "\n" : "", config::explain(*descriptions[i]));
  }
}

void run_features(const FeaturesOptions& options, bool format_given) {
  const config::Descriptions descriptions = features::builtin_descriptions();
  if (options.markdown) {
    fmt::print("{}", config::features_page(descriptions, builtin_statistics()));
    return;
  }
  if (options.name.empty()) {
    print_table(get_list(descriptions.all()), options.table);
    return;
  }
  const auto found = descriptions.find_all(options.name);
  if (found.empty()) {
    const auto near = config::suggestion(options.name, known_names(descriptions));
    raise<UsageError>("unknown feature '{}'{}", options.name,
                      near.empty() ? "; `telens features` lists all" : near);
  }
  if (format_given) {
    print_table(get_list(found), options.table);
  } else {
    explain(found);
  }
}

}  // namespace

void add_features(CLI::App& app) {
  auto options = std::make_shared<FeaturesOptions>();
  CLI::App* command =
      app.add_subcommand("features", "List the features of a debug config and their parameters.");
  command->add_option("NAME", options->name,
                      "Only this feature, with all its parameters and an example");
  add_table_options(*command, options->table);
  command
      ->add_flag("--markdown", options->markdown, "Print all features as the page docs/features.md")
      ->excludes("NAME")
      ->excludes("--format");
  command->footer(
      "Examples:\n"
      "  telens features\n"
      "  telens features FakeQuant\n"
      "  telens features base.LogTensorStats\n"
      "  telens features --format json");
  command->callback([options, command] { run_features(*options, command->count("--format") > 0); });
}

}  // namespace telens::cli
