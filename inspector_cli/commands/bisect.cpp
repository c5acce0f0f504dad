// telens bisect: finds a minimal set of GEMMs that need high precision by re-running a command.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "analysis/series.h"
#include "core/base/error.h"
#include "core/base/io.h"
#include "core/base/text.h"
#include "features/builtin_options.h"
#include "hooks/config/config.h"
#include "hooks/config/plan.h"
#include "inspector_cli/bisect/search.h"
#include "inspector_cli/commands/options.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/report/open_run.h"
#include "inspector_cli/terminal/table.h"
#include "inspector_cli/terminal/terminal.h"

namespace telens::cli {
namespace {

struct BisectOptions {
  std::vector<std::string> command;
  std::string check, reference, layers, config;
  std::string folder = "telens-bisect";
  double tolerance = 0.02;
  double timeout = 0;
  Depth depth = Depth::tensor;
};

std::string text_of_config(const std::string& path) {
  if (path.empty()) return "";
  std::ifstream file(path, std::ios::binary);
  if (!file || std::filesystem::is_directory(path)) {
    raise<UsageError>("--config {}: cannot be read; expected a debug config in YAML", path);
  }
  std::optional<std::string> text = read_bounded(file, kMostTextBytes);
  if (!text) {
    raise<UsageError>("--config {} is larger than {} MB; check the path", path,
                      kMostTextBytes >> 20);
  }
  if (!text->empty() && text->back() != '\n') *text += '\n';
  return std::move(*text);
}

TrialOptions trial_options(const BisectOptions& options) {
  TrialOptions trials{.command = options.command,
                      .check = options.check,
                      .config = text_of_config(options.config),
                      .folder = options.folder};
  if (options.timeout > 0) trials.timeout = options.timeout;
  if (!options.reference.empty()) {
    trials.reference.emplace(options.reference, options.tolerance);
    trials.reference_name = fmt::format("{} within {}", options.reference, options.tolerance);
  }
  return trials;
}

// Prints one line per run. On a terminal, the line is shown while the run lasts.
void show_trial(const Choice& choice, const Trial& trial, bool ended) {
  if (!ended) {
    if (!output_is_terminal()) return;
    fmt::print("run {:3}  ...     {}\r", trial.number, short_text(choice));
    flush_stdout();
    return;
  }
  if (output_is_terminal()) fmt::print("\x1b[K");
  fmt::print("run {:3}  {}  {}: {} ({:.3g} s)\n", trial.number,
             trial.passed ? colored("passed", Color::green) : colored("failed", Color::red),
             short_text(choice), printable(trial.reason), trial.seconds);
  flush_stdout();
}

void print_stage(const std::string& stage) {
  fmt::print("{}\n", colored("searching " + stage, Color::bold));
  flush_stdout();
}

// Prints the last output lines of the trial's program and the path of the whole output.
void show_output(const Trials& trials, const Trial& trial) {
  constexpr std::size_t kMostLines = 8;
  constexpr std::streamoff kMostBytes = 8192;
  const std::string path = trials.get_output(trial);
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file ? static_cast<std::streamoff>(file.tellg()) : 0;
  file.seekg(std::max<std::streamoff>(0, size - kMostBytes));
  std::deque<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    lines.push_back(std::move(line));
    if (lines.size() > kMostLines) lines.pop_front();
  }
  fmt::print("{} of run {}: {}\n", lines.empty() ? "No output" : "Last output", trial.number,
             printable(path));
  for (const std::string& line : lines) fmt::print("  {}\n", printable(line));
  flush_stdout();
}

// Returns the GEMMs that the first run recorded, or all GEMMs of the layers in --layers.
std::vector<Candidate> find_candidates(const BisectOptions& options, const Trials& trials,
                                       const Trial& first) {
  const std::string log_dir = trials.get_log_dir(first);
  std::vector<Candidate> recorded;
  std::string reason = "recorded no GEMM in low precision";
  try {
    recorded = candidates_in(open_run(log_dir));
  } catch (const Error&) {
    reason = "recorded nothing";
  }
  if (options.layers.empty()) {
    if (!recorded.empty()) return recorded;
    show_output(trials, first);
    raise<UsageError>(
        "the first run recorded no layers: it ended with {} and {} in {}. Expected a program that "
        "calls telens.debug.initialize(), which reads {} and {}; or a command that contains "
        "`{{config}}` and `{{log_dir}}`; or --layers. The output of the run is in {}",
        first.reason, reason, log_dir, config::kConfigVariable, config::kLogDirVariable,
        trials.get_output(first));
  }
  std::vector<Candidate> named;
  const LayerNames layers = read_layer_names(options.layers);
  for (const std::string& layer : layers.names) {
    const auto known = std::ranges::find(recorded, layer, &Candidate::layer);
    if (known != recorded.end()) {
      named.push_back(*known);
    } else if (std::ranges::find(named, layer, &Candidate::layer) == named.end()) {
      named.push_back({layer, {{Gemm::fprop}, {Gemm::dgrad}, {Gemm::wgrad}}});
    }
  }
  return named;
}

Choice all_of(const std::vector<Candidate>& candidates) {
  Choice choice;
  for (const Candidate& each : candidates) {
    choice.high[each.layer] = {kAllGemms.begin(), kAllGemms.end()};
  }
  return choice;
}

// Throws if the sections of --config conflict with generated sections, before the second run.
void check_config(const BisectOptions& options, const Choice& all) {
  std::vector<std::string> layers;
  for (const auto& [layer, gemms] : all.high) layers.push_back(layer);
  const auto loaded = config::load_config_text(text_of_config(options.config) + get_sections(all),
                                               options.config, features::builtin_descriptions());
  config::make_plan(loaded, layers);
}

std::string to_text(const Needed& needed) {
  std::vector<std::string_view> tensors;
  for (const TensorName each : needed.tensors) tensors.push_back(get_name(each));
  return tensors.empty() ? needed.about_tensors : fmt::format("{}", fmt::join(tensors, ", "));
}

// Returns the evidence for one entry of the result, for a YAML comment.
std::string evidence(const Needed& needed, int passed_run) {
  std::string text =
      fmt::format("{}: run {} failed without it ({}), run {} passed with it",
                  needed.gemms.size() == 1 ? make_label(needed.layer, *needed.gemms.begin())
                                           : printable(needed.layer),
                  needed.failed_without, printable(needed.reason), passed_run);
  if (!needed.tensors.empty()) text += fmt::format("; operands: {}", to_text(needed));
  return text;
}

std::string result_yaml(const SearchResult& result, const BisectOptions& options) {
  std::string text = fmt::format(
      "# GEMMs that need high precision, found by `telens bisect` for this command:\n#   {}\n",
      printable(fmt::format("{}", fmt::join(options.command, " "))));
  for (const Needed& each : result.needed) {
    text += fmt::format("# - {}\n", evidence(each, result.passed_run));
  }
  return text + get_sections(result.choice);
}

void show_result(const SearchResult& result, const BisectOptions& options, std::size_t runs) {
  Table table({"layer", "gemm", "operands", "without it"});
  for (const Needed& each : result.needed) {
    const bool whole = each.gemms.size() > 1 || options.depth == Depth::layer;
    table.add({each.layer, std::string(whole ? "" : get_name(*each.gemms.begin())), to_text(each),
               fmt::format("run {}: {}", each.failed_without, each.reason)});
  }
  table.drop_where_empty("gemm");
  table.drop_where_empty("operands");
  const std::string path = (std::filesystem::path(options.folder) / "high_precision.yaml").string();
  const std::string yaml = result_yaml(result, options);
  write_file(path, yaml);
  fmt::print(
      "\nThese GEMMs need high precision; run {} passed with them ({} runs in total):\n\n{}\n",
      result.passed_run, runs,
      table.render(Format::table, stdout_is_terminal() ? terminal_width() : 0));
  for (const std::string& each : result.superfluous) {
    note(fmt::format(
        "warning: {} was not needed: a run failed with more GEMMs in high precision and "
        "passed with fewer, as random runs do. Each entry above was verified, but a "
        "smaller set may exist",
        each));
  }
  fmt::print("{}\n{}", colored(printable(path), Color::bold), yaml);
}

// Runs the command unchanged and with all candidates in high precision. Returns the candidates.
std::vector<Candidate> begin_search(Trials& trials, const BisectOptions& options) {
  const Trial first = trials.run({});  // a copy, because the list of trials grows
  if (first.passed) {
    fmt::print("Nothing to search: the command passes without changes ({}).\n",
               printable(first.reason));
    throw FindingsReported();
  }
  std::vector<Candidate> candidates = find_candidates(options, trials, first);
  const Choice all = all_of(candidates);
  if (!options.config.empty()) check_config(options, all);
  const Trial last = trials.run(all);
  if (!last.passed) {
    fmt::print(
        "Low precision is not the cause: the command also fails with all {} layers in high "
        "precision ({}). If the command does not read the generated config, call "
        "telens.debug.initialize(), which reads {}, or pass `{{config}}` as an argument.\n",
        candidates.size(), printable(last.reason), config::kConfigVariable);
    show_output(trials, last);
    throw FindingsReported();
  }
  return candidates;
}

void search(const BisectOptions& options) {
  Trials trials(trial_options(options), show_trial);
  if (trials.loaded() > 0) {
    fmt::print("reusing {} runs of {}\n", trials.loaded(), printable(options.folder));
  }
  std::vector<Candidate> candidates;
  try {
    candidates = begin_search(trials, options);
  } catch (const Interrupted&) {
    throw;
  } catch (...) {
    // The user may fix the command or the program, so do not reuse these runs.
    constexpr std::size_t kBeforeSearch = 2;
    if (trials.loaded() <= kBeforeSearch) trials.forget();
    throw;
  }
  const SearchResult result = Search(trials, candidates, options.depth, print_stage).find();
  show_result(result, options, trials.count());
}

void run_bisect(const BisectOptions& options) {
  const InterruptWatch watch;
  try {
    search(options);
  } catch (const Interrupted&) {
    flush_stdout();
    note("interrupted; run the same command to continue");
    throw;
  }
}

}  // namespace

void add_bisect(CLI::App& app) {
  constexpr double kLongestTimeout = 30 * 86400.0;
  auto options = std::make_shared<BisectOptions>();
  CLI::App* command = app.add_subcommand(
      "bisect",
      "Find a minimal set of GEMMs that need high precision.\n\n"
      "Runs COMMAND again and again under generated configs, and halves the set of GEMMs in "
      "question each time. The same command continues an interrupted search. Exit code 1 if no set "
      "makes the training pass.");
  command
      ->add_option("COMMAND", options->command,
                   "The program and its arguments, after --. `{config}` and `{log_dir}` in them "
                   "are replaced; TELENS_CONFIG and TELENS_LOG_DIR have the same values")
      ->required();
  command
      ->add_option("--check", options->check,
                   "A shell command that judges a finished run; exit code 0 means good")
      ->type_name("COMMAND");
  command
      ->add_option("--reference", options->reference,
                   "A good run; a run passes if its final loss is close to the reference")
      ->type_name("RUN");
  command
      ->add_option("--tolerance", options->tolerance,
                   "How far the loss may be above the reference, relative to it")
      ->type_name("X")
      ->check(CLI::Validator(CLI::NonNegativeNumber).description(""));
  command->add_option("--timeout", options->timeout, "Seconds after which a run counts as failed")
      ->type_name("SECONDS")
      ->check(seconds_up_to(kLongestTimeout));
  add_choice<Depth>(
      *command, "--depth", options->depth,
      {{"layer", Depth::layer}, {"gemm", Depth::gemm}, {"tensor", Depth::tensor}},
      "How fine the result is: layers, their GEMMs, or operands of GEMMs (default: tensor)");
  command
      ->add_option("--layers", options->layers,
                   "The layers in question: a file with one name per line, - for standard input, "
                   "or a run (default: the layers of the first run)")
      ->type_name("LAYERS");
  command
      ->add_option("--config", options->config,
                   "Sections that all runs get, such as a Trigger that stops at a NaN")
      ->type_name("FILE");
  command->add_option("--dir", options->folder, "The folder of runs, state and result")
      ->type_name("FOLDER");
  command->footer(
      "Examples:\n"
      "  telens bisect -- python train.py --steps 200\n"
      "  telens bisect --reference logs_bf16 --tolerance 0.01 -- python train.py\n"
      "  telens bisect --check 'python judge.py {log_dir}' -- torchrun train.py");
  command->callback([options] { run_bisect(*options); });
}

}  // namespace telens::cli
