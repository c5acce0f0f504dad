#include "inspector_cli/report/worst_blocks.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "inspector_cli/report/series.h"

namespace telens::cli {
namespace {

using record::BlockRow;
using record::Dictionary;

bool is_worse(double a, double b) { return a > b || (std::isnan(a) && !std::isnan(b)); }

}  // namespace

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
  std::ranges::stable_sort(sorted, [](const WorstBlock& a, const WorstBlock& b) {
    if (a.worst.statistic != b.worst.statistic) return a.worst.statistic < b.worst.statistic;
    return is_worse(a.worst.value, b.worst.value);
  });
  return sorted;
}

Table make_table(const std::vector<WorstBlock>& blocks, const record::RunReader& run,
                 std::size_t most) {
  Table table({"statistic", "layer", "tensor", "block row", "block column", "value", "iteration",
               "iterations", "rank"});
  std::int32_t statistic = record::kNoName;
  std::size_t shown = 0;
  for (const auto& [worst, iterations] : blocks) {
    if (worst.statistic != statistic) shown = 0;
    statistic = worst.statistic;
    if (most > 0 && shown++ >= most) continue;
    table.add({name_or_empty(run, Dictionary::statistic, worst.statistic),
               name_or_empty(run, Dictionary::layer, worst.layer),
               name_or_empty(run, Dictionary::tensor, worst.tensor), std::int64_t{worst.block_row},
               std::int64_t{worst.block_column}, worst.value, worst.iteration,
               static_cast<std::int64_t>(iterations.size()), std::int64_t{worst.rank}});
  }
  return table;
}

}  // namespace telens::cli
