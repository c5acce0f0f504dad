// Device code. Merges accumulators of core/ops/statistics_layout.h over the threads of a block.
#pragma once

#include "core/formats/bits.h"
#include "core/kernels/cuda/thread.cuh"
#include "core/ops/statistics_layout.h"

namespace telens::cuda {

// Returns the grid size of a kernel that sums. It depends on the tensor's size only: the part of
// the tensor that each block reads determines the order of merging, and results should not depend
// on the card. One block more than are resident would double the time, so the grid is limited to
// `resident` blocks on each of 128 multiprocessors. H100 and H200 have 132, newer cards have more.
constexpr std::int64_t grid_that_adds_up(std::int64_t pieces, int resident) {
  constexpr std::int64_t kMultiprocessors = 128;
  const std::int64_t most = kMultiprocessors * resident;
  return pieces < 1 ? 1 : pieces < most ? pieces : most;
}

// Merges the `Sums` in the lanes of a warp in a fixed order; lane 0 has the result.
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

// Merges the sums in the threads of a block; thread 0 has the result. `of_warp` has one element per
// warp.
template <typename Sums, typename Thread>
TELENS_DEVICE Sums merge_block(const Thread& thread, Sums sums, Sums* of_warp) {
  sums = merge_warp(thread, sums);
  thread.sync();  // `of_warp` may still be read by the previous merge
  if (thread.index() % kWarp == 0) of_warp[thread.index() / kWarp] = sums;
  thread.sync();
  if (thread.index() == 0) {
    for (int warp = 1; warp < kThreads / kWarp; ++warp) merge(sums, of_warp[warp]);
  }
  return sums;
}

// One block merges part(i) for 0 <= i < count. The result is added to or replaces the existing one.
template <typename Sums, typename Thread, typename Part>
TELENS_DEVICE void merge_parts(const Thread& thread, std::int64_t count, const Part& part,
                               Sums& result, bool accumulate, Sums* of_warp) {
  Sums sums;
  for (std::int64_t i = thread.index(); i < count; i += kThreads) merge(sums, part(i));
  sums = merge_block(thread, sums, of_warp);
  if (thread.index() != 0) return;
  if (accumulate) {
    merge(result, sums);
  } else {
    result = sums;
  }
}

template <typename Sums>
struct MergeArguments {
  const Sums* parts;
  std::int64_t count;
  Sums* result;
  bool accumulate;  // true: adds to the result; false: replaces it
};

template <typename Sums>
struct MergeShared {
  Sums of_warp[kThreads / kWarp];
};

template <typename Sums, typename Thread>
TELENS_DEVICE void merge_parts(const MergeArguments<Sums>& arguments, const Thread& thread,
                               MergeShared<Sums>& shared) {
  const auto part = [&](std::int64_t i) -> const Sums& { return arguments.parts[i]; };
  merge_parts(thread, arguments.count, part, *arguments.result, arguments.accumulate,
              shared.of_warp);
}

}  // namespace telens::cuda
