// How work is divided among threads.
#pragma once

#include <cstdint>

#include "core/ops/statistics_layout.h"

namespace telens::kernels {

// Elements, read and written once, for which another thread pays off.
inline constexpr std::int64_t kGrain = 16384;

// Elements per part of a tensor in statistics kernels. The order in which sums, moments and errors
// are merged depends on parts only, so results do not depend on the number of threads. 16 chunks
// take about as long as waking a thread. accumulate_what_if_statistics uses the order of
// accumulate_block_cast_statistics.
inline constexpr std::int64_t kStatisticsPart = 16 * kStatisticsChunk;

}  // namespace telens::kernels
