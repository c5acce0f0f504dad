// telens replay: recomputes a dumped GEMM and splits its error by source. The Python package
// (telens.replay) does the work: quantization needs LibTorch, which the command does not load.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "inspector_cli/commands/options.h"
#include "inspector_cli/commands/python.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/terminal/table.h"

namespace telens::cli {
namespace {

// Does not import from the current folder, whose files may have any name. The first argument is a
// hint for a Python that lacks the package.
constexpr const char* kProgram =
    "import sys\n"
    "sys.path = [folder for folder in sys.path if folder]\n"
    "try:\n"
    "    from telens.replay.command import main\n"
    "except ImportError as error:\n"
    "    sys.exit(print(f'telens: replay: {error} ({sys.executable}); expected a Python with the "
    "'\n"
    "                   'package telens and h5py; ' + sys.argv.pop(1), file=sys.stderr) or 2)\n"
    "sys.argv.pop(1)\n"
    "sys.exit(main(sys.argv[1:]))\n";

struct ReplayOptions {
  std::string dump, layer, iterations, recipe, cast, reproducer;
  std::vector<std::string> gemms;
  std::optional<int> rank;
  Format format = Format::table;
};

std::vector<std::string> arguments(const ReplayOptions& options) {
  std::vector<std::string> given{options.dump};
  const auto add = [&](std::string_view name, const std::string& value) {
    if (!value.empty()) given.push_back(fmt::format("--{}={}", name, value));
  };
  add("layer", options.layer);
  for (const std::string& gemm : options.gemms) add("gemm", gemm);
  add("iterations", options.iterations);
  if (options.rank) add("rank", std::to_string(*options.rank));
  add("cast-format", options.cast);
  add("recipe", options.recipe);
  add("emit", options.reproducer);
  if (options.format == Format::json) add("format", "json");
  return given;
}

// Does not return: replaces this process by Python.
void run_replay(const ReplayOptions& options) {
  if (options.dump.empty() || options.dump.front() == '-') {
    raise<UsageError>(
        "replay: DUMP '{}': expected a path; write ./ before a name that begins with '-'",
        options.dump);
  }
  run_python("replay", kProgram, arguments(options));
}

}  // namespace

void add_replay(CLI::App& app) {
  auto options = std::make_shared<ReplayOptions>();
  CLI::App* command = app.add_subcommand(
      "replay",
      "Recompute a dumped GEMM in FP64 and split its error by source.\n\n"
      "Reports the error of casts, scales, accumulation and output cast. Runs in a Python with the "
      "package telens, which TELENS_PYTHON may name.");
  command
      ->add_option("DUMP", options->dump,
                   "A file of telens.DumpTensors, or a folder that contains such files")
      ->required();
  add_layer_option(*command, options->layer);
  command->add_option("--gemm", options->gemms, "Only this GEMM; may be repeated")
      ->type_name("NAME")
      ->allow_extra_args(false);
  add_iterations_option(*command, options->iterations);
  add_rank_option(*command, options->rank);
  const auto choose = [options](const std::string& given) {
    for (const auto& [word, format] : {std::pair{"table", Format::table}, {"json", Format::json}}) {
      if (CLI::detail::to_lower(given) != word) continue;
      options->format = format;
      return;
    }
    for (const std::string cast : {"E4M3", "E5M2", "HYBRID"}) {
      if (CLI::detail::to_lower(given) != CLI::detail::to_lower(cast)) continue;
      options->cast = cast;
      return;
    }
    throw CLI::ValidationError(
        "--format",
        fmt::format("expected table or json, or E4M3, E5M2 or HYBRID for a cast, not '{}'", given));
  };
  command
      ->add_option_function<std::vector<std::string>>(
          "--format",
          [choose](const std::vector<std::string>& all) {
            for (const std::string& each : all) choose(each);
          },
          "table, or json for programs. E4M3, E5M2 or HYBRID adds the error of another cast "
          "(HYBRID: E5M2 for gradients). May be repeated")
      ->type_name("{table,json,E4M3,E5M2,HYBRID}")
      ->allow_extra_args(false);
  command
      ->add_option("--recipe", options->recipe,
                   "Add the error of another recipe with its default options, such as "
                   "fp8_current_scaling")
      ->type_name("NAME");
  command
      ->add_option("--emit", options->reproducer,
                   "Write a Python script that prints the same table with torch only, and its "
                   "tensors in a file next to it")
      ->type_name("FILE");
  command->footer(
      "Examples:\n"
      "  telens replay logs/tensor_dumps --layer fc1 --gemm wgrad\n"
      "  telens replay fc1_fprop_gemm.h5 --recipe fp8_current_scaling --format HYBRID\n"
      "  telens replay fc1_fprop_gemm.h5 --emit repro.py && python repro.py");
  command->callback([options] { run_replay(*options); });
}

}  // namespace telens::cli
