// telens export: copies the numbers of a run to an experiment tracker. The Python package
// (telens._export) does the work: trackers are Python packages.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "inspector_cli/commands/options.h"
#include "inspector_cli/commands/python.h"
#include "inspector_cli/commands/subcommands.h"

namespace telens::cli {
namespace {

// Does not import from the current folder, whose files may have any name. The first argument is a
// hint for a Python that lacks the package.
constexpr const char* kProgram =
    "import sys\n"
    "sys.path = [folder for folder in sys.path if folder]\n"
    "try:\n"
    "    from telens._export import main\n"
    "except ImportError as error:\n"
    "    sys.exit(print(f'telens: export: {error} ({sys.executable}); expected a Python with the "
    "'\n"
    "                   'packages telens and pandas; ' + sys.argv.pop(1), file=sys.stderr) or 2)\n"
    "sys.argv.pop(1)\n"
    "sys.exit(main(sys.argv[1:]))\n";

struct ExportOptions {
  std::string run, tensorboard, wandb, layer;
  std::vector<std::string> statistics;
  std::optional<int> rank;
};

// Does not return: replaces this process by Python.
void run_export(const ExportOptions& options) {
  if (options.run.empty() || options.run.front() == '-') {
    raise<UsageError>(
        "export: RUN '{}': expected a path; write ./ before a name that begins with '-'",
        options.run);
  }
  if (options.tensorboard.empty() && options.wandb.empty()) {
    raise<UsageError>("export: no target; expected --tensorboard FOLDER or --wandb PROJECT");
  }
  std::vector<std::string> arguments{options.run};
  const auto add = [&](std::string_view name, const std::string& value) {
    if (!value.empty()) arguments.push_back(fmt::format("--{}={}", name, value));
  };
  add("tensorboard", options.tensorboard);
  add("wandb", options.wandb);
  add("layer", options.layer);
  for (const std::string& each : options.statistics) add("stat", each);
  if (options.rank) add("rank", std::to_string(*options.rank));
  run_python("export", kProgram, arguments);
}

}  // namespace

void add_export(CLI::App& app) {
  auto options = std::make_shared<ExportOptions>();
  CLI::App* command = app.add_subcommand(
      "export",
      "Copy the numbers of a run to TensorBoard or Weights & Biases.\n\n"
      "Names are telens/<name> for the numbers of the training, such as telens/loss, and "
      "telens/<layer>_<tensor>_<statistic> for statistics. Runs in a Python with the package "
      "telens, which TELENS_PYTHON may name, and the tracker's package.");
  add_run(*command, options->run);
  command->add_option("--tensorboard", options->tensorboard, "Write TensorBoard's event files here")
      ->type_name("FOLDER");
  command
      ->add_option("--wandb", options->wandb,
                   "Create a run in this project of Weights & Biases (offline: WANDB_MODE=offline)")
      ->type_name("PROJECT");
  add_layer_option(*command, options->layer);
  command->add_option("--stat", options->statistics, "Only this statistic; may be repeated")
      ->type_name("NAME")
      ->allow_extra_args(false);
  add_rank_option(*command, options->rank);
  command->footer(
      "Examples:\n"
      "  telens export logs --tensorboard board && tensorboard --logdir board\n"
      "  telens export logs --wandb my-project --stat cur_amax");
  command->callback([options] { run_export(*options); });
}

}  // namespace telens::cli
