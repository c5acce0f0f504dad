// telens blocks: the worst blocks of a run with a block recipe, and where they are.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "inspector_cli/commands/selection.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/commands/table_options.h"
#include "inspector_cli/report/series.h"
#include "inspector_cli/terminal/table.h"

namespace telens::cli {
namespace {

using record::BlockRow;
using record::Dictionary;

struct BlocksOptions {
  std::string run;
  Selection selection;
  TableOptions table;
};

// One block of one rank's tensor, over the iterations in which it was among the worst.
struct WorstBlock {
  BlockRow worst;
  std::set<std::int64_t> iterations;
};

bool is_worse(double a, double b) { return a > b || (std::isnan(a) && !std::isnan(b)); }

std::vector<WorstBlock> worst_blocks(const record::RunReader& run,
                                     const record::RecordQuery& query) {
  using Key = std::tuple<int, std::int32_t, std::int32_t, std::int32_t, std::int32_t, std::int32_t>;
  std::map<Key, WorstBlock> blocks;
  run.read_rows(query, [&](const BlockRow& row) {
    const auto [entry, is_new] = blocks.try_emplace(
        {row.rank, row.layer, row.tensor, row.statistic, row.block_row, row.block_column},
        WorstBlock{row, {}});
    WorstBlock& block = entry->second;
    if (is_worse(row.value, block.worst.value)) block.worst = row;
    block.iterations.insert(row.iteration);
  });
  std::vector<WorstBlock> sorted;
  for (auto& [key, block] : blocks) sorted.push_back(std::move(block));
  // Values of different statistics have nothing to do with each other.
  std::ranges::stable_sort(sorted, [](const WorstBlock& a, const WorstBlock& b) {
    if (a.worst.statistic != b.worst.statistic) return a.worst.statistic < b.worst.statistic;
    return is_worse(a.worst.value, b.worst.value);
  });
  return sorted;
}

// The first `top` of each statistic.
Table table_of(const std::vector<WorstBlock>& blocks, const record::RunReader& run, int top) {
  Table table({"statistic", "layer", "tensor", "block row", "block column", "value", "iteration",
               "iterations", "rank"});
  std::int32_t statistic = record::kNoName;
  int shown = 0;
  for (const auto& [worst, iterations] : blocks) {
    if (worst.statistic != statistic) shown = 0;
    statistic = worst.statistic;
    if (top > 0 && shown++ >= top) continue;
    table.add({name_or_empty(run, Dictionary::statistic, worst.statistic),
               name_or_empty(run, Dictionary::layer, worst.layer),
               name_or_empty(run, Dictionary::tensor, worst.tensor), std::int64_t{worst.block_row},
               std::int64_t{worst.block_column}, worst.value, worst.iteration,
               static_cast<std::int64_t>(iterations.size()), std::int64_t{worst.rank}});
  }
  return table;
}

bool has_blocks(const record::RunReader& run) {
  bool any = false;
  run.read_rows({}, [&](const BlockRow&) { any = true; });
  return any;
}

void run_blocks(const BlocksOptions& options) {
  const record::RunReader run = open_run(options.run);
  if (!has_blocks(run)) {
    raise<UsageError>(
        "{}: this run has no blocks; record them with the feature telens.BlockTelemetry (`telens "
        "features BlockTelemetry` explains it)",
        options.run);
  }
  const auto blocks = worst_blocks(run, resolve(options.selection, run));
  if (blocks.empty()) raise<UsageError>("{}: no block fits these filters", options.run);
  TableOptions shown = options.table;
  // The first rows of each statistic, unless they are mixed.
  const int top = shown.sort.empty() ? std::exchange(shown.top, 0) : 0;
  print_table(table_of(blocks, run, top), shown);
}

}  // namespace

void add_blocks(CLI::App& app) {
  auto options = std::make_shared<BlocksOptions>();
  CLI::App* command = app.add_subcommand(
      "blocks",
      "The worst blocks of tensors under a block recipe, those of each statistic apart, the worst\n"
      "first; of runs with BlockTelemetry. Rows and columns count blocks of the tensor as a "
      "matrix;\n'iteration' is the one of the value, 'iterations' how many times the block was "
      "among the worst.");
  command->add_option("RUN", options->run, "The run")->required();
  add_tensor_selection(*command, options->selection);
  command->add_option("--stat", options->selection.statistics,
                      "Only this statistic of blocks, as block_mse; may be repeated");
  add_table_options(*command, options->table);
  command->callback([options] { run_blocks(*options); });
}

}  // namespace telens::cli
