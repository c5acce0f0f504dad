// Device code. The dynamic ranges of a matrix's blocks.
#pragma once

#include "core/kernels/cuda/conversions.cuh"
#include "core/kernels/cuda/statistics/sums.cuh"

namespace telens::cuda {

// The blocks of a matrix to read. Blocks at the edges are smaller.
struct BlockRangesArguments {
  const void* x;  // [rows, columns], contiguous
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t size;
  bool of_rows;        // [1, size]
  bool of_columns;     // [size, 1]
  bool squares;        // [size, size]
  BlockRanges* parts;  // one per thread block
};

// A fixed number of thread blocks, enough to fill any card.
inline constexpr std::int64_t kBlockRangesGrid = 1024;

// The largest and the smallest nonzero magnitude of a block, as codes.
template <typename Format>
struct MagnitudeRange {
  std::uint32_t largest = 0;
  std::uint32_t smallest = ~0U;

  TELENS_DEVICE void add(std::uint32_t code) {
    const std::uint32_t magnitude = code & Format::kMagnitudeMask;
    largest = magnitude > largest ? magnitude : largest;
    smallest = magnitude > 0 && magnitude < smallest ? magnitude : smallest;
  }

  TELENS_DEVICE void add_to(BlockRanges& ranges) const {
    using Bits = typename Format::Bits;
    ++ranges.blocks;
    if (largest == 0) return;  // the ratio of zeros is 1, the initial value of max_ratio
    if (largest > Format::kTopExponentCode || smallest == Format::kTopExponentCode) {
      ++ranges.nan_blocks;
      return;
    }
    const double ratio = static_cast<double>(widen<Format>(static_cast<Bits>(largest))) /
                         static_cast<double>(widen<Format>(static_cast<Bits>(smallest)));
    ranges.max_ratio = larger(ranges.max_ratio, ratio);
  }
};

namespace detail {

TELENS_DEVICE std::int64_t get_blocks(std::int64_t extent, std::int64_t size) {
  return (extent + size - 1) / size;
}

// Blocks of `height` rows and `size` columns; each warp processes one at a time.
template <typename Format, typename Thread>
TELENS_DEVICE void add_tiles(const BlockRangesArguments& arguments, std::int64_t height,
                             const Thread& thread, BlockRanges& ranges) {
  const auto* x = static_cast<const typename Format::Bits*>(arguments.x);
  const std::int64_t across = get_blocks(arguments.columns, arguments.size);
  const std::int64_t tiles = across * get_blocks(arguments.rows, height);
  constexpr int kWarps = kThreads / kWarp;
  const int lane = thread.index() % kWarp;
  for (std::int64_t tile = thread.block() * kWarps + thread.index() / kWarp; tile < tiles;
       tile += thread.blocks() * kWarps) {
    const std::int64_t row0 = tile / across * height;
    const std::int64_t column0 = tile % across * arguments.size;
    const std::int64_t rows = row0 + height < arguments.rows ? height : arguments.rows - row0;
    const std::int64_t columns =
        column0 + arguments.size < arguments.columns ? arguments.size : arguments.columns - column0;
    MagnitudeRange<Format> range;
    for (std::int64_t row = row0; row < row0 + rows; ++row) {
      for (std::int64_t i = lane; i < columns; i += kWarp) {
        range.add(x[row * arguments.columns + column0 + i]);
      }
    }
    for (int mask = kWarp / 2; mask > 0; mask /= 2) {
      const std::uint32_t largest = thread.shuffle_xor(range.largest, mask);
      const std::uint32_t smallest = thread.shuffle_xor(range.smallest, mask);
      range.largest = largest > range.largest ? largest : range.largest;
      range.smallest = smallest < range.smallest ? smallest : range.smallest;
    }
    if (lane == 0) range.add_to(ranges);
  }
}

// Single-column blocks of `size` rows; each thread processes one at a time, so loads are coalesced.
template <typename Format, typename Thread>
TELENS_DEVICE void add_columns(const BlockRangesArguments& arguments, const Thread& thread,
                               BlockRanges& ranges) {
  const auto* x = static_cast<const typename Format::Bits*>(arguments.x);
  const std::int64_t count = arguments.columns * get_blocks(arguments.rows, arguments.size);
  for (std::int64_t i = thread.block() * kThreads + thread.index(); i < count;
       i += thread.blocks() * kThreads) {
    const std::int64_t row0 = i / arguments.columns * arguments.size;
    const std::int64_t end =
        row0 + arguments.size < arguments.rows ? row0 + arguments.size : arguments.rows;
    MagnitudeRange<Format> range;
    for (std::int64_t row = row0; row < end; ++row) {
      range.add(x[row * arguments.columns + i % arguments.columns]);
    }
    range.add_to(ranges);
  }
}

}  // namespace detail

template <typename Format, typename Thread>
TELENS_DEVICE void block_ranges(const BlockRangesArguments& arguments, const Thread& thread,
                                MergeShared<BlockRanges>& shared) {
  BlockRanges ranges;
  if (arguments.of_rows) detail::add_tiles<Format>(arguments, 1, thread, ranges);
  if (arguments.of_columns) detail::add_columns<Format>(arguments, thread, ranges);
  if (arguments.squares) detail::add_tiles<Format>(arguments, arguments.size, thread, ranges);
  ranges = merge_block(thread, ranges, shared.of_warp);
  if (thread.index() == 0) arguments.parts[thread.block()] = ranges;
}

}  // namespace telens::cuda
