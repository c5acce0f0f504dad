// The worst blocks of tensors under a block recipe, of runs with BlockTelemetry.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "record/run_reader.h"

namespace telens::analysis {

// A block of a tensor on one rank, in the iterations in which it was among the worst.
struct WorstBlock {
  record::BlockRow worst;
  std::set<std::int64_t> iterations;
};

// Returns the blocks grouped by statistic, worst first. Values of different statistics cannot be
// compared.
std::vector<WorstBlock> worst_blocks(const record::RunReader& run,
                                     const record::RecordQuery& query);

}  // namespace telens::analysis
