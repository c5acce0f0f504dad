// telens diagnose: finds the first problem of a run and suggests a fix.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "analysis/diagnosis.h"
#include "analysis/findings.h"
#include "analysis/rules.h"
#include "analysis/run_state.h"
#include "analysis/series.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "inspector_cli/commands/options.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/report/diagnosis_text.h"
#include "inspector_cli/report/open_run.h"
#include "inspector_cli/terminal/table.h"
#include "inspector_cli/terminal/terminal.h"

namespace telens::cli {
namespace {

using analysis::recording_notes;

constexpr std::size_t kPipeWidth = 100;

struct DiagnoseOptions {
  std::string run;
  Format format = Format::table;
  bool rules = false;
  bool missing = false;  // list skipped rules
  bool all = false;      // print all findings
};

void run_diagnose(const DiagnoseOptions& options) {
  if (options.rules) {
    fmt::print("{}", options.format == Format::json ? rules_json() : rules_markdown());
    return;
  }
  if (options.run.empty()) raise<UsageError>("diagnose: RUN is required");
  const record::RunReader run = open_run(options.run);
  const auto runs = list_runs(options.run);
  const std::string name = runs.empty() ? options.run : runs.front().folder;
  const diagnosis::Facts facts(run, diagnosis::statistics_of_rules());
  const diagnosis::Diagnosis found = diagnosis::diagnose(facts);
  const std::vector<std::string> notes = recording_notes(run);
  if (options.format == Format::json) {
    fmt::print("{}", diagnosis_json(found, facts, name, notes));
  } else {
    const auto width =
        stdout_is_terminal() ? static_cast<std::size_t>(terminal_width()) : kPipeWidth;
    print_ending(facts.ending(), width);
    if (!runs.empty()) {
      // One line, so that the path can be copied.
      fmt::print("the newest of {} runs: {}\n\n", runs.size(), printable(name));
    }
    print_notes(notes, width);
    print_diagnosis(found, facts, name, options.all, width);
    print_skipped_rules(found, run.config_text(), options.missing, width);
  }
  if (!found.findings.empty()) throw FindingsReported();
}

}  // namespace

void add_diagnose(CLI::App& app) {
  auto options = std::make_shared<DiagnoseOptions>();
  CLI::App* command = app.add_subcommand(
      "diagnose",
      "Find the first problem in a run, and suggest a fix.\n\nNames the layer, tensor and "
      "iteration of every problem, with evidence and next steps. configs/flight_recorder.yaml "
      "records the data for all rules. Exit code 1 if there are findings.");
  command->add_option("RUN", options->run, kRunDoc);
  add_choice<Format>(*command, "--format", options->format,
                     {{"table", Format::table}, {"json", Format::json}},
                     "table, or json for programs (docs/diagnosis.md)");
  command->add_flag("--all", options->all, "Print all findings instead of the first three");
  command->add_flag("--missing", options->missing,
                    "List each skipped rule with the data that it needs");
  command->add_flag("--rules", options->rules, "List all rules, as Markdown or JSON; needs no RUN");
  command->footer(
      "Examples:\n"
      "  telens diagnose logs\n"
      "  telens diagnose logs --missing");
  command->callback([options] { run_diagnose(*options); });
}

}  // namespace telens::cli
