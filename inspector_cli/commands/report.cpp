// telens report: writes one HTML page about a run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "analysis/run_state.h"
#include "analysis/series.h"
#include "core/base/error.h"
#include "inspector_cli/commands/options.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/report/open_run.h"
#include "inspector_cli/report/report_page.h"
#include "inspector_cli/terminal/terminal.h"

namespace telens::cli {
namespace {

struct ReportOptions {
  std::string run;
  std::string out = "report.html";
};

void run_report(const ReportOptions& options) {
  if (!options.out.ends_with(".html")) {
    raise<UsageError>("--out {}: expected a file name that ends in .html", options.out);
  }
  const record::RunReader run = open_run(options.run);
  if (run.record_count() == 0 && run.scalars().empty() && run.events().empty() &&
      analysis::recording_notes(run).empty()) {
    raise<RecordError>(
        "{}: this run does not contain records or events yet; `telens info` "
        "shows its state",
        options.run);
  }
  const Report report = make_report(run, options.run);
  fmt::print("{}: {}\n", write_output(options.out, make_page(report.data)), report.verdict);
}

}  // namespace

void add_report(CLI::App& app) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* command = app.add_subcommand(
      "report",
      "Write an HTML page about a run that opens offline.\n\n"
      "The page has the findings of `telens diagnose`, losses, heat maps of layers by iterations "
      "and by ranks, histograms, the worst blocks, the precision of GEMMs, the configuration and "
      "the environment.");
  add_run(*command, options->run);
  command->add_option("-o,--out", options->out, "The page; its folder must exist")
      ->type_name("FILE")
      ->capture_default_str();
  command->footer("Example:\n  telens report logs --out report.html");
  command->callback([options] { run_report(*options); });
}

}  // namespace telens::cli
