// The worst blocks of tensors under a block recipe, of runs with BlockTelemetry.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "inspector_cli/terminal/table.h"
#include "record/run_reader.h"

namespace telens::cli {

// One block of one rank's tensor, over the iterations in which it was among the worst.
struct WorstBlock {
  record::BlockRow worst;
  std::set<std::int64_t> iterations;
};

// Those of each statistic together, the worst first: values of different statistics have nothing
// to do with each other.
std::vector<WorstBlock> worst_blocks(const record::RunReader& run,
                                     const record::RecordQuery& query);

// The first `most` of each statistic, a row each; 0: all.
Table make_table(const std::vector<WorstBlock>& blocks, const record::RunReader& run,
                 std::size_t most);

}  // namespace telens::cli
