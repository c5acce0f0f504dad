// telens blocks: lists the worst blocks of tensors under a block recipe.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>

#include "analysis/series.h"
#include "analysis/tensor_summary.h"
#include "core/base/error.h"
#include "inspector_cli/commands/options.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/report/analysis_display.h"
#include "inspector_cli/report/open_run.h"

namespace telens::cli {
namespace {

using analysis::worst_blocks;

using record::BlockRow;

struct BlocksOptions {
  std::string run;
  Selection selection;
  TableOptions table;
};

bool has_blocks(const record::RunReader& run) {
  bool any = false;
  run.read_rows({}, [&](const BlockRow&) { any = true; });
  return any;
}

void run_blocks(const BlocksOptions& options) {
  const record::RunReader run = open_run(options.run);
  if (!has_blocks(run)) {
    raise<UsageError>(
        "{}: this run contains no blocks; record them with the feature telens.BlockTelemetry "
        "(see `telens features BlockTelemetry`)",
        options.run);
  }
  const auto blocks = worst_blocks(run, resolve(options.selection, run));
  if (blocks.empty()) raise<UsageError>("{}: no block fits these filters", options.run);
  TableOptions shown = options.table;
  // --top counts rows per statistic, unless --sort mixes them.
  const int top = shown.sort.empty() ? std::exchange(shown.top, 0) : 0;
  print_table(block_table(blocks, run, static_cast<std::size_t>(top)), shown);
}

}  // namespace

void add_blocks(CLI::App& app) {
  auto options = std::make_shared<BlocksOptions>();
  CLI::App* command = app.add_subcommand(
      "blocks",
      "List the worst blocks of tensors under a block recipe.\n\nSorts the blocks per "
      "statistic, worst first. The run must have recorded telens.BlockTelemetry. 'row' and "
      "'column' count blocks of the tensor as a matrix. 'iteration' is when the value occurred, "
      "'iterations' how often the block ranked among the worst.");
  add_run(*command, options->run);
  add_tensor_selection(*command, options->selection);
  command
      ->add_option("--stat", options->selection.statistics,
                   "Only this block statistic, such as block_mse; may be repeated")
      ->type_name("NAME");
  add_table_options(*command, options->table);
  command->footer("Example:\n  telens blocks logs --stat block_mse --top 10");
  command->callback([options] { run_blocks(*options); });
}

}  // namespace telens::cli
