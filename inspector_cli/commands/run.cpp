// telens run: runs a training program and records its torch models. The Python package
// (telens.attach) starts the program.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "features/builtin_options.h"
#include "hooks/config/config.h"
#include "hooks/statistics/statistic_name.h"
#include "inspector_cli/commands/python.h"
#include "inspector_cli/commands/subcommands.h"

namespace telens::cli {
namespace {

// Finds the package without importing it: an import loads torch, and the program loads it again.
constexpr const char* kProgram =
    "import importlib.util, os, runpy, sys\n"
    "sys.path = [folder for folder in sys.path if folder]\n"
    "hint = sys.argv.pop(1)\n"
    "package = importlib.util.find_spec('telens')\n"
    "if package is None:\n"
    "    sys.exit(print(f'telens: run: no package telens in {sys.executable}; expected a Python "
    "with '\n"
    "                   f'it; {hint}', file=sys.stderr) or 2)\n"
    "folder = package.submodule_search_locations[0]\n"
    "runpy.run_path(os.path.join(folder, 'attach', 'launch.py'), run_name='__main__')\n";

struct RunOptions {
  std::vector<std::string> command, modules;
  std::string config, log_dir;
  std::vector<std::string> feature_dirs;
};

// Throws before the program starts, which may take minutes until it attaches. Folders of features
// can add names that only Python knows.
void check_config(const RunOptions& options) {
  if (options.config.empty() || !options.feature_dirs.empty()) return;
  const auto statistics = std::make_shared<config::StatisticDescriptions>(
      [](std::string_view name) { return parse_statistic_name(name).has_value(); });
  config::load_config_file(options.config, features::builtin_descriptions(statistics));
}

void run_training(const RunOptions& options) {
  check_config(options);
  std::vector<std::string> arguments;
  for (const std::string& folder : options.feature_dirs) {
    arguments.push_back("--feature-dir=" + folder);
  }
  if (!options.config.empty()) arguments.push_back("--config=" + options.config);
  if (!options.log_dir.empty()) arguments.push_back("--log-dir=" + options.log_dir);
  for (const std::string& each : options.modules) arguments.push_back("--modules=" + each);
  arguments.emplace_back("--");
  arguments.insert(arguments.end(), options.command.begin(), options.command.end());
  run_python("run", kProgram, arguments, python_of_program(options.command.front()));
}

}  // namespace

void add_run_training(CLI::App& app) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand(
      "run",
      "Run a training program and record its torch models.\n\n"
      "The program does not have to call TELens: every process that it starts attaches to the "
      "models that it trains. Its results do not change. `telens watch` follows a run that is "
      "being recorded.");
  command
      ->add_option("COMMAND", options->command,
                   "The program and its arguments, after --, such as python or torchrun")
      ->required();
  command
      ->add_option("--config", options->config,
                   "The debug config (default: statistics of every tensor within 3 % of the "
                   "time)")
      ->type_name("FILE");
  command
      ->add_option("--feature-dir", options->feature_dirs,
                   "A folder of feature plugins that the config uses; may be repeated")
      ->type_name("FOLDER");
  command->add_option("--log-dir", options->log_dir, "Where to record (default: telens_run)")
      ->type_name("FOLDER");
  command
      ->add_option("--modules", options->modules,
                   "More modules to record: a regular expression for their name or class; may be "
                   "repeated")
      ->type_name("REGEX")
      ->allow_extra_args(false);
  command->footer(
      "Examples:\n"
      "  telens run -- python train.py --steps 200\n"
      "  telens run --log-dir logs -- torchrun --nproc-per-node 8 train.py");
  command->callback([options] { run_training(*options); });
}

}  // namespace telens::cli
