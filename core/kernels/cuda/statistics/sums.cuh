// Device code. The accumulators of core/ops/statistics_layout.h: a thread's sums of a cast, and
// merging over the threads of a block.
#pragma once

#include "core/formats/bits.h"
#include "core/kernels/cuda/approximations.cuh"
#include "core/kernels/cuda/conversions.cuh"
#include "core/kernels/cuda/thread.cuh"
#include "core/ops/statistics_layout.h"

namespace telens::cuda {

// A thread's sums of a cast.
struct CastAccumulator {
  double squared_error;
  std::uint32_t underflows;
  std::uint32_t overflows;
  std::uint32_t saturated;

  // The caller sets elements and scales.
  TELENS_DEVICE CastSums finish() const {
    CastSums sums;
    sums.underflows = underflows;
    sums.overflows = overflows;
    sums.saturated = saturated;
    sums.squared_error = squared_error;
    return sums;
  }
};

// In a sum of squared errors above this value, losses from underflow are negligible.
inline constexpr float kNoticeableError = 0x1p-110F;

TELENS_DEVICE float get_magnitude(float value) {
  return bits_as<float>(bits_as<std::uint32_t>(value) & FP32::kMagnitudeMask);
}

// Returns the sum of the squares of a few errors: computed in FP32, or in double if FP32 cannot
// hold it.
template <int size>
TELENS_DEVICE double sum_of_squares(const float (&errors)[size]) {
  float squares = 0;
  TELENS_UNROLL
  for (const float error : errors) squares = multiply_add(error, error, squares);
  if (squares >= kNoticeableError && squares <= FP32::kMax) return squares;
  double exact = 0;
  TELENS_UNROLL
  for (const float error : errors) exact += static_cast<double>(error) * error;
  return exact;
}

// The smallest and the largest scale; both become NaN if one scale is NaN.
struct ScaleExtremes {
  float smallest = std::numeric_limits<float>::infinity();
  float largest = -std::numeric_limits<float>::infinity();

  TELENS_DEVICE void add(float scale) {
    smallest = scale < smallest || scale != scale ? scale : smallest;
    largest = scale > largest || scale != scale ? scale : largest;
  }
  TELENS_DEVICE void finish(CastSums& sums) const {
    sums.scale_inv_min = smallest;
    sums.scale_inv_max = largest;
  }
};

// ---- Merging over the threads of a block.

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
