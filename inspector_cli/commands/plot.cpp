// telens plot: plots statistics over iterations, in the terminal, as a page or as JSON.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "inspector_cli/commands/options.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/report/chart.h"
#include "inspector_cli/report/first_trouble.h"
#include "inspector_cli/report/histogram_chart.h"
#include "inspector_cli/report/open_run.h"
#include "inspector_cli/terminal/terminal.h"

namespace telens::cli {
namespace {

constexpr int kPlotSchema = 1;

enum class PlotFormat : std::uint8_t { chart, json };

struct PlotOptions {
  std::string run;
  std::string out;
  Selection selection;
  PlotFormat format = PlotFormat::chart;
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

// Returns [iteration, value] for each bin; `warm_up` chooses the bins of warm-up or all others.
Json points_json(const Chart& chart, const Line& line, bool warm_up) {
  Json points = Json::array();
  for (std::size_t b = 0; b < line.bins.size(); ++b) {
    const Bin& bin = line.bins[b];
    if (!bin.seen() || bin.warm_up() != warm_up) continue;
    points.push_back(Json::array({chart.get_iteration(b), json_number(bin.value())}));
  }
  return points;
}

Json lines_json(const Chart& chart, const std::vector<Line>& lines) {
  Json list = Json::array();
  for (const Line& line : lines) {
    Json object;
    object["label"] = json_text(line.label);
    object["points"] = points_json(chart, line, /*warm_up=*/false);
    Json warm_up = points_json(chart, line, /*warm_up=*/true);
    if (!warm_up.empty()) object["warm_up"] = std::move(warm_up);
    list.push_back(std::move(object));
  }
  return list;
}

void print_chart_json(const Chart& chart) {
  Json object;
  object["schema_version"] = kPlotSchema;
  object["run"] = json_text(chart.run_id);
  object["first_iteration"] = chart.first_iteration;
  object["last_iteration"] = chart.last_iteration;
  object["bins"] = chart.bins;
  object["scalars"] = lines_json(chart, chart.scalars);
  object["statistics"] = Json::array();
  for (const Panel& panel : chart.panels) {
    Json entry;
    entry["statistic"] = json_text(panel.statistic);
    entry["worst"] = lines_json(chart, panel.worst);
    object["statistics"].push_back(std::move(entry));
  }
  fmt::print("{}\n", json_line(object));
}

void run_plot(const PlotOptions& options) {
  const std::string& out = options.out;
  if (!out.empty() && !out.ends_with(".html")) {
    raise<UsageError>(
        "--out {}: expected a file name that ends in .html; the page can save each chart as PNG",
        out);
  }
  const record::RunReader run = open_run(options.run);
  if (options.format == PlotFormat::json) {
    return print_chart_json(make_chart(run, resolve(options.selection, run), kInFile));
  }
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
  add_choice<PlotFormat>(*command, "--format", options->format,
                         {{"chart", PlotFormat::chart}, {"json", PlotFormat::json}},
                         "chart, or json: the losses and the worst tensors of each statistic, at "
                         "most 240 points per line");
  command->get_option("--format")->excludes("--out")->excludes("--histogram");
  command->footer(
      "Examples:\n"
      "  telens plot logs --stat underflows% --tensor gradient\n"
      "  telens plot logs --out underflows.html\n"
      "  telens plot logs --histogram --iterations 100");
  command->callback([options] { run_plot(*options); });
}

}  // namespace telens::cli
