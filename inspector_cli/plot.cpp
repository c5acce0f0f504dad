// telens plot: statistics over iterations, on the terminal, as SVG or as a page.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include "core/base/error.h"
#include "inspector_cli/chart.h"
#include "inspector_cli/selection.h"
#include "inspector_cli/subcommands.h"
#include "inspector_cli/terminal.h"

namespace telens::cli {
namespace {

struct PlotOptions {
  std::string run;
  std::string out;
  Selection selection;
};

constexpr ChartLimits kInFile{.bins = 240, .lines = 6, .panels = 5};
constexpr ChartLimits kOnTerminal{.bins = 240, .lines = 1, .panels = 1};

void write_file(const std::string& path, const std::string& text) {
  std::error_code unwritable;  // which the file's own error tells better
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), unwritable);
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) raise<UsageError>("cannot write {}: {}", path, std::strerror(errno));
}

void run_plot(const PlotOptions& options) {
  const bool html = options.out.ends_with(".html");
  if (!options.out.empty() && !html && !options.out.ends_with(".svg")) {
    raise<UsageError>("--out {}: a name that ends in .svg or .html was expected", options.out);
  }
  const record::RunReader run = open_run(options.run);
  const bool to_file = !options.out.empty();
  const Chart chart =
      make_chart(run, resolve(options.selection, run), to_file ? kInFile : kOnTerminal);
  if (!to_file) {
    fmt::print("{}", draw_text(chart, terminal_width()));
    return;
  }
  write_file(options.out, html ? draw_html(chart) : draw_svg(chart));
  fmt::print("wrote {}\n", options.out);
}

}  // namespace

void add_plot(CLI::App& app) {
  auto options = std::make_shared<PlotOptions>();
  CLI::App* command = app.add_subcommand(
      "plot",
      "Statistics over iterations: lines of the worst tensors and a map of layers by iterations. "
      "Without --stat: the gravest of nonfinite, overflows%, underflows%, mse, cur_amax.");
  command->add_option("RUN", options->run, "The run")->required();
  command->add_option("--out", options->out,
                      "Write this file instead: .svg, or .html (opens without a network)");
  add_selection(*command, options->selection);
  command->callback([options] { run_plot(*options); });
}

}  // namespace telens::cli
