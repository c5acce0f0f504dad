// Device code. Error statistics of several hypothetical block casts, in one read.
//
// A thread block holds a tile of 128 x 128 elements in registers, which contains whole blocks of
// every format. For each cast it finds the largest magnitudes of the tile's blocks, computes their
// scales in shared memory, one thread per scale, and rounds each element to the format's values
// with its block's scale. No code is stored.
#pragma once

#include "core/kernels/cuda/quantize/block_quantize.cuh"
#include "core/kernels/cuda/statistics/statistics_casts.cuh"
#include "core/kernels/cuda/statistics/sums.cuh"
#include "core/ops/scale_formula.h"

namespace telens::cuda {

// The accumulators of a launch's casts take 30 KB, scales and maxima 12 KB, of the 48 KB of shared
// memory that a block gets by default. More casts need another read.
inline constexpr int kWhatIfCastsOfLaunch = 5;

// One cast, with the default options of its quantizer.
struct UnmadeCast {
  FormatId format;
  FormatId scale_format;  // the scheme's
  int block;              // elements along a row that share a scale
  bool squares;
  bool columnwise;
};

struct WhatIfArguments {
  BlockMatrix x;
  bool whole;         // columns are a multiple of 8, x is aligned to 16 bytes
  const float* amax;  // the tensor's largest number; nullptr if no cast needs it
  UnmadeCast casts[kWhatIfCastsOfLaunch];
  int cast_count;
  CastSums* parts;  // [cast_count, blocks of threads]
};

// Tiles contain whole blocks of every format.
using WhatIfTile = TileShape<block_length(ScalingMode::block_1d)>;
// Resident thread blocks per multiprocessor: a thread has 64 elements, their maxima and factors.
inline constexpr int kWhatIfResident = blocks_with(128);
inline constexpr int kWhatIfRows = WhatIfTile::kRowsOfThread;
// The maximum number of blocks in a tile.
inline constexpr int kSmallestBlock = smallest_block_length();
inline constexpr int kBlocksAlong = kTileColumns / kSmallestBlock;
inline constexpr int kWhatIfBlocks = kBlocksAlong * WhatIfTile::kRows;
static_assert(WhatIfTile::kRows == kTileColumns);
static_assert(kSmallestBlock == kRowGroupsOfWarp * kWhatIfRows,
              "a warp has the rows of one smallest block");

constexpr std::int64_t what_if_grid(std::int64_t rows, std::int64_t columns) {
  return grid_that_adds_up(tiles_of_matrix(rows, columns, WhatIfTile::kRows), kWhatIfResident);
}

struct WhatIfShared {
  // Blocks of a line are at [index of the block in the line][line], squares at [row][column].
  // Squares and blocks down the columns first have one maximum per warp.
  alignas(16) std::uint32_t maxima[kWhatIfBlocks];
  alignas(16) float factors[kWhatIfBlocks];
  alignas(16) float scales[kWhatIfBlocks];
  CastAccumulator casts[kWhatIfCastsOfLaunch][kThreads];
  // Bits of scales, which are not negative. The smallest scale is stored as its complement.
  std::uint32_t largest_scale[kWhatIfCastsOfLaunch];
  std::uint32_t smallest_scale[kWhatIfCastsOfLaunch];
  CastSums of_warp[kThreads / kWarp];
};

// The constants of a format's rounding and counting.
struct CastGrid {
  RoundingGrid rounding;
  float first_clipped;
};
template <typename Format>
TELENS_DEVICE CastGrid cast_grid() {
  return {make_grid<Format>(), kFirstClipped<Format>};
}
TELENS_DEVICE CastGrid make_cast_grid(FormatId format) {
  if (format == FormatId::e4m3) return cast_grid<E4M3>();
  return format == FormatId::e5m2 ? cast_grid<E5M2>() : cast_grid<E2M1>();
}

struct ScaleAndFactor {
  float scale;   // scale_inv
  float factor;  // multiplies the elements
};

// Computes scales from block maxima like the format's quantizer.
struct UnmadeScaling {
  const UnmadeCast& cast;
  TwoLevelScaling two_levels;
  float largest_scale;  // 128-blocks: the largest value of x's format

  TELENS_DEVICE ScaleAndFactor of(float amax) const {
    if (cast.scale_format == FormatId::e4m3) {
      const auto made = two_levels.get_scale(amax);
      return {decode<E4M3>(made.stored) * two_levels.tensor_scale, made.factor};
    }
    return cast.format == FormatId::e4m3 ? of_fp8<E4M3>(amax) : of_fp8<E5M2>(amax);
  }

 private:
  template <typename Format>
  TELENS_DEVICE ScaleAndFactor of_fp8(float amax) const {
    if (cast.scale_format == FormatId::e8m0) {
      const std::uint8_t code = e8m0_scale<Format>(amax, ScaleRounding::up);
      return {decode<E8M0>(code), e8m0_factor(code)};
    }
    const auto made =
        Fp8BlockScaling<Format>{/*power_of_2_scales=*/true, 0.0F, largest_scale}.get_scale(amax);
    return {made.stored, made.factor};
  }
};

namespace detail {

// Magnitudes of eight neighbors in each of a thread's rows.
template <typename Input>
struct WhatIfElements {
  static constexpr int kWords = kColumnsOfThread / kLanes<Input>;
  Pack<std::uint32_t, kWords> rows[kWhatIfRows];

  template <bool whole>
  TELENS_DEVICE void load(const BlockMatrix& matrix, std::int64_t row, std::int64_t column) {
    EightWords<typename Input::Bits> x[kWhatIfRows];
    load_rows<typename Input::Bits, whole>(matrix, row, column, x);
    TELENS_UNROLL
    for (int i = 0; i < kWhatIfRows; ++i) {
      rows[i] = bits_as<Pack<std::uint32_t, kWords>>(count_magnitudes<Input>(x[i]));
    }
  }

  TELENS_DEVICE float at(int row, int column) const {
    return widen_lane<Input>(rows[row].values[column / kLanes<Input>], column % kLanes<Input>);
  }

  // Forces the compiler to widen the elements again for every cast. Widened 16-bit elements, kept
  // between casts, would need twice the available registers.
  TELENS_DEVICE void stay_packed() {
#if defined(__CUDA_ARCH__)
    TELENS_UNROLL
    for (int i = 0; i < kWhatIfRows; ++i) {
      TELENS_UNROLL
      for (std::uint32_t& word : rows[i].values) asm volatile("" : "+r"(word));
    }
#endif
  }
};

// A thread's position in the tile, and the tile's position in the matrix.
struct WhatIfPlace {
  const BlockMatrix& matrix;
  std::int64_t tile_row;
  std::int64_t tile_column;
  int row;
  int column;

  // Lines and columns of the tile that are inside the matrix.
  TELENS_DEVICE std::int64_t rows() const { return matrix.rows - tile_row; }
  TELENS_DEVICE std::int64_t columns() const { return matrix.columns - tile_column; }
};

// The arrangement of a cast's blocks in a tile.
struct BlockLayout {
  int block;
  bool squares;
  bool down;  // blocks run down the columns and are not squares

  explicit TELENS_DEVICE BlockLayout(const UnmadeCast& cast)
      : block(cast.block), squares(cast.squares), down(!cast.squares && cast.columnwise) {}

  // The number of used positions in shared memory, and the line and block at a position.
  TELENS_DEVICE int lines() const { return squares ? kTileColumns / block : kTileColumns; }
  TELENS_DEVICE int places() const { return kTileColumns / block * lines(); }
  // The number of warps that share a block. Each of them writes a separate maximum.
  TELENS_DEVICE int warps() const {
    return squares || down ? block / (kRowGroupsOfWarp * kWhatIfRows) : 1;
  }
  // Returns true if the block at a position has an element inside the matrix.
  TELENS_DEVICE bool is_inside(int along, int line, const WhatIfPlace& place) const {
    const int row = squares || down ? along * block : line;
    const int column = squares ? line * block : down ? line : along * block;
    return row < place.rows() && column < place.columns();
  }
};

template <typename Input, NanInMaximum nan, typename Thread>
TELENS_DEVICE void store_maxima(const WhatIfElements<Input>& x, const BlockLayout& layout,
                                const WhatIfPlace& place, const Thread& thread,
                                WhatIfShared& shared) {
  using Maxima = Magnitudes<Input, nan>;
  using Words = Pack<std::uint32_t, WhatIfElements<Input>::kWords>;
  const auto get_maxima = [&](int row) {
    Words words = x.rows[row];
    TELENS_UNROLL
    for (std::uint32_t& word : words.values) word = Maxima::of_word(word);
    return words;
  };
  const int lanes = layout.block / kColumnsOfThread;
  const int warp = thread.index() / kWarp;
  const bool is_first_lane = place.column % layout.block == 0;
  if (!layout.squares && !layout.down) {
    TELENS_UNROLL
    for (int i = 0; i < kWhatIfRows; ++i) {
      const std::uint32_t largest = largest_of_lanes(thread, Maxima::largest(get_maxima(i)), lanes);
      if (is_first_lane) {
        shared.maxima[place.column / layout.block * kTileColumns + place.row + i] =
            Maxima::code(largest);
      }
    }
    return;
  }
  Words columns = get_maxima(0);
  TELENS_UNROLL
  for (int i = 1; i < kWhatIfRows; ++i) {
    const Words of_row = get_maxima(i);
    TELENS_UNROLL
    for (int word = 0; word < WhatIfElements<Input>::kWords; ++word) {
      columns.values[word] = Maxima::larger(columns.values[word], of_row.values[word]);
    }
  }
  TELENS_UNROLL
  for (std::uint32_t& word : columns.values) {
    word = Maxima::larger(word, thread.shuffle_xor(word, kThreadsAcross));
  }
  const bool is_upper_half = thread.index() % kWarp < kThreadsAcross;
  if (layout.squares) {
    const std::uint32_t largest = largest_of_lanes(thread, Maxima::largest(columns), lanes);
    if (is_upper_half && is_first_lane) {
      shared.maxima[warp * layout.lines() + place.column / layout.block] = Maxima::code(largest);
    }
  } else if (is_upper_half) {
    TELENS_UNROLL
    for (int c = 0; c < kColumnsOfThread; ++c) {
      constexpr int kOfWord = kLanes<Input>;
      const std::uint32_t word = columns.values[c / kOfWord] >> (c % kOfWord * 16);
      shared.maxima[warp * kTileColumns + place.column + c] =
          Maxima::code(kOfWord == 1 ? word : word & 0xffffU);
    }
  }
}

// Computes the scales of the tile's blocks; each thread computes one at a time.
template <typename Input, typename Thread>
TELENS_DEVICE void make_scales(const UnmadeScaling& scaling, const BlockLayout& layout,
                               const WhatIfPlace& place, const Thread& thread, int cast,
                               WhatIfShared& shared) {
  const int lines = layout.lines();
  std::uint32_t largest_scale = 0;
  std::uint32_t smallest_scale = 0;
  for (int i = thread.index(); i < layout.places(); i += kThreads) {
    const int along = i / lines;
    const int line = i % lines;
    std::uint32_t amax = 0;
    for (int warp = 0; warp < layout.warps(); ++warp) {
      const std::uint32_t other = shared.maxima[(along * layout.warps() + warp) * lines + line];
      amax = other > amax ? other : amax;
    }
    const auto made = scaling.of(widen<Input>(static_cast<typename Input::Bits>(amax)));
    shared.scales[i] = made.scale;
    shared.factors[i] = made.factor;
    if (!layout.is_inside(along, line, place)) continue;
    const auto bits = bits_as<std::uint32_t>(made.scale);
    largest_scale = bits > largest_scale ? bits : largest_scale;
    smallest_scale = ~bits > smallest_scale ? ~bits : smallest_scale;
  }
  largest_scale = largest_of_lanes(thread, largest_scale, kWarp);
  smallest_scale = largest_of_lanes(thread, smallest_scale, kWarp);
  if (thread.index() % kWarp == 0) {
    thread.atomic_max(&shared.largest_scale[cast], largest_scale);
    thread.atomic_max(&shared.smallest_scale[cast], smallest_scale);
  }
}

// scales, factors: of the thread's rows, or of its columns.
template <typename Input, bool of_rows, bool whole>
TELENS_DEVICE void add_elements(const WhatIfElements<Input>& x, const WhatIfPlace& place,
                                const Eight<float>& scales, const Eight<float>& factors,
                                const CastGrid& grid, CastAccumulator& sums) {
  static_assert(kWhatIfRows == kColumnsOfThread);
  TELENS_UNROLL
  for (int i = 0; i < kWhatIfRows; ++i) {
    if (place.row + i >= place.rows()) continue;
    float errors[kColumnsOfThread];
    TELENS_UNROLL
    for (int c = 0; c < kColumnsOfThread; ++c) {
      const float scale = scales.values[of_rows ? i : c];
      const float factor = factors.values[of_rows ? i : c];
      const float magnitude = x.at(i, c);
      const float scaled = magnitude * factor;
      const float clipped = scaled > grid.rounding.largest ? grid.rounding.largest : scaled;
      float after = round_to_grid(clipped, grid.rounding) * scale;
      if (!whole && place.column + c >= place.columns()) after = 0;  // the scale may be NaN
      const float limit = scale * grid.rounding.largest;
      sums.underflows += magnitude != 0 && after == 0;
      sums.overflows += magnitude > limit;
      // The factors of these quantizers are exactly the reciprocals of their scales, at most
      // FLT_MAX.
      sums.saturated += magnitude >= limit && scaled >= grid.first_clipped;
      errors[c] = after - magnitude;
    }
    sums.squared_error += sum_of_squares(errors);
  }
}

// Returns the scales or factors of a thread's rows, its columns, or its square (repeated eight
// times).
TELENS_DEVICE Eight<float> of_thread(const float* of_blocks, const BlockLayout& layout,
                                     const WhatIfPlace& place) {
  const int along_rows = place.row / layout.block;
  const int along_columns = place.column / layout.block;
  if (layout.squares) {
    const float one = of_blocks[along_rows * layout.lines() + along_columns];
    Eight<float> eight;
    TELENS_UNROLL
    for (float& each : eight.values) each = one;
    return eight;
  }
  return load_pack<kColumnsOfThread>(of_blocks + (layout.down
                                                      ? along_rows * kTileColumns + place.column
                                                      : along_columns * kTileColumns + place.row));
}

template <typename Input, bool whole, typename Thread>
TELENS_DEVICE void add_cast(const WhatIfElements<Input>& x, const UnmadeScaling& scaling,
                            const WhatIfPlace& place, const Thread& thread, int cast,
                            WhatIfShared& shared) {
  const BlockLayout layout(scaling.cast);
  if (scaling.cast.scale_format == FormatId::e4m3) {
    store_maxima<Input, TwoLevelScaling::kNan>(x, layout, place, thread, shared);
  } else {
    store_maxima<Input, NanInMaximum::left_out>(x, layout, place, thread, shared);
  }
  thread.sync();
  make_scales<Input>(scaling, layout, place, thread, cast, shared);
  // This barrier also precedes the next cast's maxima. Its scales are written after that cast's
  // first barrier.
  thread.sync();
  if (place.column >= place.columns()) return;
  const Eight<float> scales = of_thread(shared.scales, layout, place);
  const Eight<float> factors = of_thread(shared.factors, layout, place);
  const CastGrid grid = make_cast_grid(scaling.cast.format);
  CastAccumulator sums = shared.casts[cast][thread.index()];
  if (layout.down) {
    add_elements<Input, false, whole>(x, place, scales, factors, grid, sums);
  } else {
    add_elements<Input, true, whole>(x, place, scales, factors, grid, sums);
  }
  shared.casts[cast][thread.index()] = sums;
}

}  // namespace detail

template <typename Input, bool whole, typename Thread>
TELENS_DEVICE void what_if_statistics(const WhatIfArguments& arguments, const Thread& thread,
                                      WhatIfShared& shared) {
  const int casts = arguments.cast_count;
  for (int i = 0; i < casts; ++i) shared.casts[i][thread.index()] = {};
  if (thread.index() < casts) {
    shared.largest_scale[thread.index()] = shared.smallest_scale[thread.index()] = 0;
  }
  thread.sync();
  const auto two_levels =
      arguments.amax != nullptr ? TwoLevelScaling::of(*arguments.amax) : TwoLevelScaling{};
  for_each_tile<WhatIfTile::kRows>(
      thread, arguments.x.rows, arguments.x.columns,
      [&](std::int64_t tile_row, std::int64_t tile_column) {
        const detail::WhatIfPlace place{arguments.x, tile_row, tile_column,
                                        get_row<kWhatIfRows>(thread), get_column(thread)};
        detail::WhatIfElements<Input> x;
        x.template load<whole>(arguments.x, tile_row + place.row, tile_column + place.column);
        for (int i = 0; i < casts; ++i) {
          x.stay_packed();
          detail::add_cast<Input, whole>(x, {arguments.casts[i], two_levels, Input::kMax}, place,
                                         thread, i, shared);
        }
      });
  thread.sync();
  for (int i = 0; i < casts; ++i) {
    CastSums sums = shared.casts[i][thread.index()].finish();
    if (thread.index() == 0) {
      if (thread.block() == 0) sums.numel = arguments.x.rows * arguments.x.columns;
      const auto largest = bits_as<float>(shared.largest_scale[i]);
      sums.scale_inv_max = largest;
      sums.scale_inv_min = largest == largest ? bits_as<float>(~shared.smallest_scale[i]) : largest;
    }
    const CastSums of_block = merge_block(thread, sums, shared.of_warp);
    if (thread.index() == 0) arguments.parts[i * thread.blocks() + thread.block()] = of_block;
  }
}

}  // namespace telens::cuda
