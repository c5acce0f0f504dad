// telens plot: plots statistics over iterations, in the terminal or as a page.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "core/base/error.h"
#include "core/base/text.h"
#include "inspector_cli/commands/options.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/report/chart.h"
#include "inspector_cli/report/first_trouble.h"
#include "inspector_cli/report/histogram_chart.h"
#include "inspector_cli/report/open_run.h"
#include "inspector_cli/terminal/output.h"
#include "inspector_cli/terminal/terminal.h"

namespace telens::cli {
namespace {

struct PlotOptions {
  std::string run;
  std::string out;
  Selection selection;
  bool histogram = false;
};

constexpr ChartLimits kInFile{.bins = 240, .lines = 6, .panels = 5};
constexpr ChartLimits kOnTerminal{.bins = 240, .lines = 1, .panels = 1};
constexpr HistogramLimits kHistogramsInFile{.bins = 240, .tensors = 6, .rows = 80};
constexpr HistogramLimits kHistogramsOnTerminal{.bins = 240, .tensors = 1, .rows = 36};

// Draws a chart in the terminal, or as a page if `out` is set.
template <typename AnyChart>
void draw(const AnyChart& chart, const std::string& out) {
  if (out.empty()) {
    fmt::print("{}", draw_text(chart, terminal_width()));
    return;
  }
  fmt::print("{}\n", write_output(out, draw_html(chart)));
}

void run_plot(const PlotOptions& options) {
  const std::string& out = options.out;
  if (!out.empty() && !out.ends_with(".html")) {
    raise<UsageError>(
        "--out {}: expected a file name that ends in .html; the page can save each chart as PNG",
        out);
  }
  const record::RunReader run = open_run(options.run);
  if (!options.histogram) {
    draw(make_chart(run, resolve(options.selection, run), out.empty() ? kOnTerminal : kInFile),
         out);
    if (out.empty() && output_is_terminal()) print_pointer(options.run);
    return;
  }
  const auto chart = make_histogram_chart(run, histogram_query(options.selection, run, options.run),
                                          out.empty() ? kHistogramsOnTerminal : kHistogramsInFile);
  draw(chart, out);
  for (const std::string& each : chart.notes) note(each);
}

}  // namespace

void add_plot(CLI::App& app) {
  auto options = std::make_shared<PlotOptions>();
  CLI::App* command = app.add_subcommand(
      "plot",
      "Plot statistics over iterations, in the terminal or as a page.\n\n"
      "Draws lines of the worst tensors and a heat map of layers by iterations. Without --stat, "
      "draws the most severe of nonfinite, overflows%, underflows%, mse and cur_amax.");
  add_run(*command, options->run);
  command->add_option("--out", options->out, "Write an HTML page that opens offline instead")
      ->type_name("FILE");
  add_selection(*command, options->selection);
  command
      ->add_flag("--histogram", options->histogram,
                 "Plot the magnitudes that telens.ValueHistogram recorded: exponents by "
                 "iterations, or bars for one iteration")
      ->excludes("--stat")
      ->excludes("--gemm");
  command->footer(
      "Examples:\n"
      "  telens plot logs --stat underflows% --tensor gradient\n"
      "  telens plot logs --out underflows.html\n"
      "  telens plot logs --histogram --iterations 100");
  command->callback([options] { run_plot(*options); });
}

}  // namespace telens::cli
