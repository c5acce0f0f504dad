// Device code. Histograms of a tensor's values. Sums are integer sums, so their order does not
// matter.
#pragma once

#include "core/kernels/cuda/packs.cuh"
#include "core/ops/histogram_layout.h"

namespace telens::cuda {

struct HistogramArguments {
  const void* x;
  std::int64_t size;
  std::int64_t* counts;
};

inline constexpr int kHistogramUnroll = 4;

// Each warp has a separate table: equal exponents are frequent, and increments of one address wait
// for each other.
struct ExponentTables {
  std::uint32_t counts[kThreads / kWarp][kExponentBins];
};

// A block's elements must fit a 32-bit counter. With a grid of hundreds of blocks, 10^12 elements
// would be needed to exceed it.
template <typename Format, int width, typename Thread>
TELENS_DEVICE void exponent_histogram(const HistogramArguments& arguments, const Thread& thread,
                                      ExponentTables& shared) {
  using Bits = typename Format::Bits;
  for (int i = thread.index(); i < (kThreads / kWarp) * static_cast<int>(kExponentBins);
       i += kThreads) {
    shared.counts[i / kExponentBins][i % kExponentBins] = 0;
  }
  thread.sync();
  std::uint32_t* mine = shared.counts[thread.index() / kWarp];
  for_each_pack<width, kHistogramUnroll>(
      thread, static_cast<const Bits*>(arguments.x), arguments.size,
      [&]<int size>(const Pack<Bits, size>& pack, std::int64_t) {
        TELENS_UNROLL
        for (int i = 0; i < size; ++i) {
          thread.atomic_add(mine + get_exponent_bin<Format>(pack.values[i]), std::uint32_t{1});
        }
      });
  thread.sync();
  for (std::int64_t bin = thread.index(); bin < kExponentBins; bin += kThreads) {
    std::int64_t count = 0;
    for (const auto& table : shared.counts) count += table[bin];
    if (count != 0) thread.atomic_add(arguments.counts + bin, count);
  }
}

// One bin per 16-bit code: too many for tables in shared memory. Typical tensors have thousands of
// different codes, so increments in the second-level cache rarely conflict.
template <int width, typename Thread>
TELENS_DEVICE void code_histogram(const HistogramArguments& arguments, const Thread& thread) {
  for_each_pack<width, kHistogramUnroll>(
      thread, static_cast<const std::uint16_t*>(arguments.x), arguments.size,
      [&]<int size>(const Pack<std::uint16_t, size>& pack, std::int64_t) {
        TELENS_UNROLL
        for (int i = 0; i < size; ++i) {
          thread.atomic_add(arguments.counts + pack.values[i], std::int64_t{1});
        }
      });
}

}  // namespace telens::cuda
