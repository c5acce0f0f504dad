#include "analysis/worst_blocks.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

namespace telens::analysis {
namespace {

using record::BlockRow;

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

}  // namespace telens::analysis
