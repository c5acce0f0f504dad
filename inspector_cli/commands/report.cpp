// telens report: one page that opens offline and says what happened.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/base/error.h"
#include "core/base/printable.h"
#include "features/diagnosis/diagnosis.h"
#include "features/diagnosis/rules.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/report/chart.h"
#include "inspector_cli/report/histogram_chart.h"
#include "inspector_cli/report/report_page.h"
#include "inspector_cli/report/series.h"
#include "inspector_cli/terminal/output.h"

namespace telens::cli {
namespace {

constexpr ChartLimits kCharts{.bins = 240, .lines = 6, .panels = 5};
constexpr HistogramLimits kHistograms{.bins = 240, .tensors = 6, .rows = 80};

struct ReportOptions {
  std::string run;
  std::string out = "report.html";
};

std::optional<HistogramChart> histograms_of(const record::RunReader& run) {
  try {
    return make_histogram_chart(run, {}, kHistograms);
  } catch (const UsageError&) {
    return std::nullopt;  // a run without ValueHistogram
  }
}

void run_report(const ReportOptions& options) {
  if (!options.out.ends_with(".html")) {
    raise<UsageError>("--out {}: expected a name that ends in .html", options.out);
  }
  const record::RunReader run = open_run(options.run);
  const diagnosis::Facts facts(run, diagnosis::statistics_of_rules());
  const diagnosis::Diagnosis found = diagnosis::diagnose(facts);
  const Chart chart = make_chart(run, {}, kCharts);
  const auto histograms = histograms_of(run);
  const WrittenFile written =
      write_file(options.out, draw_report(chart, histograms ? &*histograms : nullptr,
                                          report_sections(run, facts, found, options.run)));
  fmt::print("{}: {}\n", told(options.out, written),
             found.findings.empty() ? "no finding"
                                    : fmt::format("{} finding{}", found.findings.size(),
                                                  found.findings.size() == 1 ? "" : "s"));
}

}  // namespace

void add_report(CLI::App& app) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* command = app.add_subcommand(
      "report",
      "Writes a page that opens without a network: findings, losses, heat maps of layers by\n"
      "iterations, histograms, what GEMMs ran in, configuration and environment.");
  command->add_option("RUN", options->run, "The run")->required();
  command->add_option("-o,--out", options->out, "The page")->capture_default_str();
  command->callback([options] { run_report(*options); });
}

}  // namespace telens::cli
