// The worst blocks of tensors under a block recipe, of runs with BlockTelemetry.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "record/run_reader.h"

namespace telens::analysis {

// One block of one rank's tensor, over the iterations in which it was among the worst.
struct WorstBlock {
  record::BlockRow worst;
  std::set<std::int64_t> iterations;
};

// Those of each statistic together, the worst first: values of different statistics have nothing
// to do with each other.
std::vector<WorstBlock> worst_blocks(const record::RunReader& run,
                                     const record::RecordQuery& query);

}  // namespace telens::analysis
