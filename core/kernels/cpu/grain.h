// How work is cut for threads.
#pragma once

#include <cstdint>

#include "core/ops/statistics_layout.h"

namespace telens::kernels {

// Elements that are read and written once for which starting another thread pays.
inline constexpr std::int64_t kGrain = 16384;

// Elements per part of a tensor whose statistics are read. Parts, not threads, decide in which
// order sums, moments and errors are merged, so that results do not depend on the number of
// threads: 16 chunks, about as long as it takes to wake a thread. accumulate_what_if_statistics
// has the order of accumulate_block_cast_statistics.
inline constexpr std::int64_t kStatisticsPart = 16 * kStatisticsChunk;

}  // namespace telens::kernels
