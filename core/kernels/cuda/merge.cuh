// Merging accumulators of core/ops/statistics_layout.h over the threads of a block: device code.
#pragma once

#include "core/formats/bits.h"
#include "core/kernels/cuda/thread.cuh"
#include "core/ops/statistics_layout.h"

namespace telens::cuda {

// `Sums` of all lanes of a warp, merged in one order; lane 0 has the result.
template <typename Sums, typename Thread>
TELENS_DEVICE Sums merge_warp(const Thread& thread, Sums sums) {
  constexpr int kWords = sizeof(Sums) / sizeof(std::int64_t);
  struct Words {
    std::int64_t values[kWords];
  };
  for (int mask = 1; mask < kWarp; mask *= 2) {
    const auto mine = bits_as<Words>(sums);
    Words others;
    TELENS_UNROLL
    for (int i = 0; i < kWords; ++i) others.values[i] = thread.shuffle_xor(mine.values[i], mask);
    merge(sums, bits_as<Sums>(others));
  }
  return sums;
}

// The same of all threads of a block; thread 0 has the result. `of_warp` has room for one a warp.
template <typename Sums, typename Thread>
TELENS_DEVICE Sums merge_block(const Thread& thread, Sums sums, Sums* of_warp) {
  sums = merge_warp(thread, sums);
  thread.sync();  // the room may still be read from the merge before
  if (thread.index() % kWarp == 0) of_warp[thread.index() / kWarp] = sums;
  thread.sync();
  if (thread.index() == 0) {
    for (int warp = 1; warp < kThreads / kWarp; ++warp) merge(sums, of_warp[warp]);
  }
  return sums;
}

}  // namespace telens::cuda
