// telens report: one page that opens offline and says what happened.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "core/base/error.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/report/report_page.h"
#include "inspector_cli/report/run_state.h"
#include "inspector_cli/report/series.h"
#include "inspector_cli/terminal/output.h"

namespace telens::cli {
namespace {

struct ReportOptions {
  std::string run;
  std::string out = "report.html";
};

void run_report(const ReportOptions& options) {
  if (!options.out.ends_with(".html")) {
    raise<UsageError>("--out {}: expected a name that ends in .html", options.out);
  }
  const record::RunReader run = open_run(options.run);
  if (run.record_count() == 0 && run.scalars().empty() && run.events().empty() &&
      recording_notes(run).empty()) {
    raise<RecordError>(
        "{}: this run has no records and no events (yet); telens info says how it stands",
        options.run);
  }
  const Report report = make_report(run, options.run);
  const WrittenFile written = write_file(options.out, make_page(report.data));
  fmt::print("{}: {}\n", told(options.out, written),
             report.findings == 0
                 ? "no finding"
                 : fmt::format("{} finding{}", report.findings, report.findings == 1 ? "" : "s"));
}

}  // namespace

void add_report(CLI::App& app) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* command = app.add_subcommand(
      "report",
      "Writes a page that opens without a network: findings, losses, heat maps of layers by\n"
      "iterations and by ranks, histograms, blocks, what GEMMs ran in, configuration and\n"
      "environment.");
  command->add_option("RUN", options->run, "The run")->required();
  command->add_option("-o,--out", options->out, "The page")->capture_default_str();
  command->callback([options] { run_report(*options); });
}

}  // namespace telens::cli
