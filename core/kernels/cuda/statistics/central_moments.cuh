// Device code. The central moments of a tensor.
#pragma once

#include "core/kernels/cuda/conversions.cuh"
#include "core/kernels/cuda/statistics/merge.cuh"

namespace telens::cuda {

struct CentralMomentsArguments {
  const void* x;
  std::int64_t size;
  CentralMoments* parts;  // one per thread block
};

constexpr std::int64_t central_moments_blocks(std::int64_t size) {
  constexpr int kResident = 2;  // resident thread blocks per multiprocessor
  return grid_that_adds_up((size + kStatisticsChunk - 1) / kStatisticsChunk, kResident);
}

namespace detail {

// Computes the moments of `count` elements in FP64. `at(i)` returns the code of element i and is
// called twice for each.
template <typename Format, typename At>
TELENS_DEVICE CentralMoments compute_moments(int count, const At& at) {
  const auto is_finite = [&](int i) {
    return (at(i) & Format::kMagnitudeMask) < Format::kTopExponentCode;
  };
  const auto value = [&](int i) {
    return static_cast<double>(widen<Format>(static_cast<typename Format::Bits>(at(i))));
  };
  double sum = 0;
  std::int64_t finite = 0;
  for (int i = 0; i < count; ++i) {
    if (!is_finite(i)) continue;
    sum += value(i);
    ++finite;
  }
  if (finite == 0) return {};
  const double center = sum / static_cast<double>(finite);
  CenteredSums sums;
  for (int i = 0; i < count; ++i) {
    if (is_finite(i)) sums.add(value(i) - center);
  }
  return moments_around(center, finite, sums);
}

}  // namespace detail

// Writes the moments of the block's chunks to its element of `parts`.
template <typename Format, typename Thread>
TELENS_DEVICE void central_moments(const CentralMomentsArguments& arguments, const Thread& thread,
                                   MergeShared<CentralMoments>& shared) {
  const auto* x = static_cast<const typename Format::Bits*>(arguments.x);
  CentralMoments moments;
  for (std::int64_t first = thread.block() * kStatisticsChunk; first < arguments.size;
       first += thread.blocks() * kStatisticsChunk) {
    const std::int64_t left = arguments.size - first;
    const std::int64_t size = left < kStatisticsChunk ? left : kStatisticsChunk;
    const int count = static_cast<int>(size / kThreads) + (thread.index() < size % kThreads);
    merge(moments, detail::compute_moments<Format>(count, [&](int i) {
            return std::uint32_t{x[first + std::int64_t{i} * kThreads + thread.index()]};
          }));
  }
  moments = merge_block(thread, moments, shared.of_warp);
  if (thread.index() == 0) arguments.parts[thread.block()] = moments;
}

}  // namespace telens::cuda
