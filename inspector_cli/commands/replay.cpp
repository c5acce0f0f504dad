// telens replay: a dumped GEMM again, and its error in parts. The work is done by the Python
// package (telens.replay), since the casts are operators of LibTorch, which the command goes
// without.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "inspector_cli/commands/number_options.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/terminal/output.h"
#include "inspector_cli/terminal/table.h"

namespace telens::cli {
namespace {

constexpr const char* kPythonVariable = "TELENS_PYTHON";

// The current folder is no place to import from: a file there may have any name.
constexpr const char* kProgram =
    "import sys\n"
    "sys.path = [folder for folder in sys.path if folder]\n"
    "try:\n"
    "    from telens.replay.command import main\n"
    "except ImportError as error:\n"
    "    sys.exit(print(f'telens: replay: {error} ({sys.executable}); expected a Python with the "
    "'\n"
    "                   'package telens and h5py; name it in TELENS_PYTHON', file=sys.stderr) or "
    "2)\n"
    "sys.exit(main(sys.argv[1:]))\n";

struct ReplayOptions {
  std::string dump, layer, iterations, recipe, cast, reproducer;
  std::vector<std::string> gemms;
  std::optional<int> rank;
  Format format = Format::table;
};

// The one that TELENS_PYTHON names, the one beside the command (as in a virtual environment), or
// that of PATH.
std::string python() {
  namespace fs = std::filesystem;
  if (const char* named = std::getenv(kPythonVariable); named != nullptr && *named != '\0') {
    return named;
  }
  std::error_code error;
  const fs::path beside = fs::read_symlink("/proc/self/exe", error).parent_path() / "python3";
  return !error && fs::exists(beside, error) ? beside.string() : "python3";
}

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

// Does not return: Python takes the process over.
void run_replay(const ReplayOptions& options) {
  if (options.dump.empty() || options.dump.front() == '-') {
    raise<UsageError>("replay: DUMP '{}': expected a path; write ./ before a name that begins so",
                      options.dump);
  }
  std::vector<std::string> command{python(), "-c", kProgram};
  for (std::string& each : arguments(options)) command.push_back(std::move(each));
  std::vector<char*> words;
  for (std::string& each : command) words.push_back(each.data());
  words.push_back(nullptr);
  flush_stdout();
  ::execvp(words.front(), words.data());
  raise<UsageError>(
      "replay: cannot start {}: {}; expected a Python with the package telens, which {} may name",
      command.front(), std::strerror(errno), kPythonVariable);
}

}  // namespace

void add_replay(CLI::App& app) {
  auto options = std::make_shared<ReplayOptions>();
  CLI::App* command = app.add_subcommand(
      "replay",
      "A dumped GEMM again, in FP64, and its error in parts: casts, scales, accumulation, output\n"
      "cast. It runs in Python, with the package telens.");
  command
      ->add_option("DUMP", options->dump,
                   "What DumpTensors wrote: a file, or a folder with such files at any depth")
      ->required();
  command->add_option("--layer", options->layer,
                      "Only layers in whose name this regular expression is found (Python syntax)");
  command->add_option("--gemm", options->gemms, "Only this GEMM; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--iterations", options->iterations,
                      "Only iterations a to b, both inclusive: a:b, a:, :b or a");
  command->add_option("--rank", options->rank, "Only this rank")->check(whole_number_from(0));
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
          "table, or json for programs; and what another cast would have given: to E4M3, E5M2, or "
          "HYBRID (E5M2 for gradients). May be given for both")
      ->type_name("{table,json,E4M3,E5M2,HYBRID}")
      ->allow_extra_args(false);
  command->add_option("--recipe", options->recipe,
                      "What the casts of another recipe would have given, with its default "
                      "options; names are those in dumps, such as fp8_current_scaling");
  command->add_option("--emit", options->reproducer,
                      "Write FILE, a Python script that prints the same with torch alone, and its "
                      "tensors beside it");
  command->footer(
      "Examples:\n"
      "  telens replay logs/tensor_dumps --layer fc1 --gemm wgrad\n"
      "  telens replay fc1_fprop_gemm.h5 --recipe fp8_current_scaling --format HYBRID\n"
      "  telens replay fc1_fprop_gemm.h5 --emit repro.py && python repro.py");
  command->callback([options] { run_replay(*options); });
}

}  // namespace telens::cli
