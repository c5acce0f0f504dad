// telens whatif: estimates the effect of a per-tensor FP8 recipe on recorded histograms.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>

#include "analysis/offline_casts.h"
#include "analysis/series.h"
#include "core/base/error.h"
#include "inspector_cli/commands/options.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/report/open_run.h"
#include "inspector_cli/terminal/table.h"
#include "inspector_cli/terminal/terminal.h"

namespace telens::cli {
namespace {

using analysis::apply_offline_cast;
using analysis::Fp8Choice;
using analysis::name_or_empty;
using analysis::OfflineCast;
using analysis::OfflineCastRow;
using analysis::OfflineCasts;

using record::Dictionary;

struct WhatIfOptions {
  std::string run;
  Selection selection;
  OfflineCast cast;
  bool each_iteration = false;
  TableOptions table;
};

Cell cell(const std::optional<double>& value) { return value ? Cell(*value) : Cell(); }

// With a larger margin every FP32 scale would be zero or infinite.
constexpr int kMostMargin = 127;

constexpr std::string_view kBounds =
    "exponent histograms give bounds: columns 'overflows%' and 'underflows%' are lower bounds, "
    "columns with '<=' upper bounds, and amax is an upper bound; record 'bins: codes' for exact "
    "statistics";

Table make_table(const record::RunReader& run, const std::vector<OfflineCastRow>& rows,
                 const WhatIfOptions& options, bool bounds) {
  std::vector<std::string> columns{"layer", "tensor", "format", "nonfinite", "overflows%"};
  if (bounds) columns.emplace_back("overflows% <=");
  columns.emplace_back("underflows%");
  if (bounds) columns.emplace_back("underflows% <=");
  for (const char* name : {"mse/amax^2", "SQNR dB", "amax"}) columns.emplace_back(name);
  columns.emplace_back(options.each_iteration ? "iteration" : "iterations");
  if (options.each_iteration) columns.emplace_back("scale");
  columns.emplace_back("warm-up");
  Table table(columns);
  for (const OfflineCastRow& row : rows) {
    std::vector<Cell> cells{name_or_empty(run, Dictionary::layer, row.layer),
                            name_or_empty(run, Dictionary::tensor, row.tensor),
                            std::string(get_name(row.format)), row.nonfinite, row.overflows.low};
    if (bounds) cells.emplace_back(row.overflows.high);
    cells.emplace_back(row.underflows.low);
    if (bounds) cells.emplace_back(row.underflows.high);
    cells.push_back(cell(row.relative_mse));
    cells.push_back(cell(row.sqnr_db));
    cells.emplace_back(row.amax.high);
    cells.emplace_back(options.each_iteration ? row.iteration : row.iterations);
    if (options.each_iteration) {
      const bool exact = row.scale.low == row.scale.high;
      cells.push_back(exact ? Cell(row.scale.low) : Cell());
    }
    cells.emplace_back(row.warm_up);
    table.add(std::move(cells));
  }
  table.drop_where_empty("warm-up");
  table.may_lack({"iterations", "amax", "mse/amax^2", "warm-up", "nonfinite"});
  return table;
}

void run_whatif(const WhatIfOptions& options) {
  const record::RunReader run = open_run(options.run);
  const auto query = histogram_query(options.selection, run, options.run);
  const OfflineCasts result = apply_offline_cast(run, query, options.cast, options.each_iteration);
  if (result.rows.empty()) raise<UsageError>("{}: no histogram fits these filters", options.run);
  const Table table = make_table(run, result.rows, options, result.bounds);
  print_table(table, options.table);
  for (const std::string& each : result.notes) note(each);
  if (result.bounds) note(kBounds);
}

}  // namespace

void add_whatif(CLI::App& app) {
  auto options = std::make_shared<WhatIfOptions>();
  CLI::App* command = app.add_subcommand(
      "whatif",
      "Estimate the effect of another FP8 recipe on a run.\n\nApplies a per-tensor recipe to "
      "the histograms that telens.ValueHistogram recorded, added up over ranks. Shows the worst "
      "iteration per tensor, the lowest average SQNR first.\n\nFor delayed scaling, only "
      "recorded iterations enter the amax history. The first one is warm-up and is excluded "
      "unless it is the only one.");
  add_run(*command, options->run);
  add_choice<Fp8Choice>(
      *command, "--fp8-format", options->cast.format,
      {{"E4M3", Fp8Choice::e4m3}, {"E5M2", Fp8Choice::e5m2}, {"HYBRID", Fp8Choice::hybrid}},
      "HYBRID uses E5M2 for gradient, dgrad and wgrad, and E4M3 for the rest (default: HYBRID)");
  WhatIfRecipe& recipe = options->cast.recipe;
  command->add_option("--margin", recipe.margin, "Divide the scale by 2^N (default: 0)")
      ->type_name("N")
      ->check(whole_number_from(-kMostMargin, kMostMargin));
  add_choice<AmaxSource>(*command, "--amax", recipe.amax,
                         {{"current", AmaxSource::current},
                          {"most_recent", AmaxSource::most_recent},
                          {"max", AmaxSource::max}},
                         "current: the tensor's own amax (current scaling). most_recent and max: "
                         "amax of earlier iterations (delayed scaling) (default: current)");
  command
      ->add_option("--history", recipe.history,
                   "Iterations of amax history for --amax max (default: 1024)")
      ->type_name("N")
      ->check(whole_number_from(1));
  command->add_flag("--power-of-two", recipe.power_of_two, "Round scales to powers of two");
  add_tensor_selection(*command, options->selection);
  command->add_flag("--each-iteration", options->each_iteration,
                    "One row per iteration, in their order");
  add_table_options(*command, options->table);
  command->footer(
      "Examples:\n"
      "  telens whatif logs --fp8-format E4M3\n"
      "  telens whatif logs --amax max --history 16 --tensor gradient");
  command->callback([options] { run_whatif(*options); });
}

}  // namespace telens::cli
