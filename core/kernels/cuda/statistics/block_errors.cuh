// Device code. The errors of a cast in each block of a tensor, and the difference of the two copies
// of a matrix in a block format.
#pragma once

#include "core/kernels/cuda/blocks/block_decode.cuh"
#include "core/kernels/cuda/statistics/statistics_block_casts.cuh"
#include "core/kernels/cuda/statistics/sums.cuh"
#include "core/ops/statistics_layout.h"

namespace telens::cuda {

// ---- The errors of a cast in each block.
//
// A thread processes eight columns of a block's rows. If blocks run along the rows, this is one
// row, and the threads that share a block add their sums by shuffles. If blocks run down the
// columns, it is all rows of the block.

// Memory direction of blocks.
enum class BlockDirection { along_rows, down_columns, squares };

struct BlockErrorsArguments {
  CastMatrix matrix;
  BlockDirection direction;
  int block;  // elements along a block
  // Block [row, column] of the matrix in memory is stored at row * row_stride + column *
  // column_stride.
  BlockErrors* blocks;
  std::int64_t row_stride;
  std::int64_t column_stride;

  TELENS_DEVICE BlockErrors& at(std::int64_t row, std::int64_t column) const {
    return blocks[row * row_stride + column * column_stride];
  }
};

namespace detail {

// A thread's sums of a block. The number of elements follows from the position.
struct PartOfBlock {
  double squared_error = 0;
  std::uint32_t underflows = 0;
  std::uint32_t saturated = 0;
  bool nonzero = false;

  template <typename Format>
  TELENS_DEVICE void add(float before, float after, float scale) {
    const float magnitude = get_magnitude(before);
    nonzero |= before != 0;
    underflows += before != 0 && after == 0;
    if (magnitude >= scale * kNearlyClipped<Format> && magnitude > 0) {
      saturated += is_clipped<Format>(magnitude, scale);
    }
    const double error = after - before;  // the difference is rounded to FP32
    squared_error += error * error;
  }

  // Adds the sums of `lanes` neighboring threads; all of them get the result.
  template <typename Thread>
  TELENS_DEVICE void merge(const Thread& thread, int lanes) {
    for (int mask = 1; mask < lanes; mask *= 2) {
      squared_error += thread.shuffle_xor(squared_error, mask);
      underflows += thread.shuffle_xor(underflows, mask);
      saturated += thread.shuffle_xor(saturated, mask);
      nonzero |= thread.shuffle_xor(static_cast<std::uint32_t>(nonzero), mask) != 0;
    }
  }

  TELENS_DEVICE BlockErrors finish(std::int64_t elements) const {
    return {static_cast<std::int32_t>(elements), nonzero ? 1 : 0,
            static_cast<std::int32_t>(underflows), static_cast<std::int32_t>(saturated),
            squared_error};
  }
};

TELENS_DEVICE std::int64_t up_to(std::int64_t size, std::int64_t end) {
  return size < end ? size : end;
}

// Calls visit(rows, column) for eight columns of every `lines` rows of bytes. All threads of a warp
// are called equally often; rows or columns of some are beyond the matrix.
template <typename Thread, typename Visit>
TELENS_DEVICE void for_each_strip(const Thread& thread, std::int64_t strips, std::int64_t columns,
                                  const Visit& visit) {
  // The width is rounded up to whole tiles, so that the threads of a row cover whole blocks.
  const std::int64_t across = count_tiles(columns, kTileColumns) * kThreadsAcross;
  const std::int64_t work = count_tiles(strips * across, kThreads) * kThreads;
  for (std::int64_t i = thread.block() * kThreads + thread.index(); i < work;
       i += thread.blocks() * kThreads) {
    visit(i / across, i % across * kColumnsOfThread);
  }
}

// Blocks within one row: a thread processes a few rows at once.
template <typename Input, typename ScaleFormat, typename X, CodePairs pairs, typename Thread>
TELENS_DEVICE void errors_along_rows(const BlockErrorsArguments& arguments, const Thread& thread) {
  const CastMatrix& matrix = arguments.matrix;
  const StoredScales<ScaleFormat> stored(matrix.codes);
  for_each_strip(
      thread, count_tiles(matrix.x.rows, kDecodeRows), matrix.x.columns,
      [&](std::int64_t strip, std::int64_t column) {
        const std::int64_t left = matrix.x.columns - column;
        const int count = static_cast<int>(up_to(left, kColumnsOfThread));
        CastOfThread<X, pairs> cast;
        cast.load(matrix, strip * kDecodeRows, column);
        TELENS_UNROLL
        for (int i = 0; i < kDecodeRows; ++i) {
          const std::int64_t row = strip * kDecodeRows + i;
          const bool is_inside = row < matrix.x.rows && column < matrix.x.columns;
          PartOfBlock part;
          if (is_inside) {
            cast.template visit_row<Input>(i, count, stored.of_eight(row, column),
                                           [&](int, float before, float after, float scale) {
                                             part.add<Input>(before, after, scale);
                                           });
          }
          part.merge(thread, arguments.block / kColumnsOfThread);
          if (is_inside && column % arguments.block == 0) {
            arguments.at(row, column / arguments.block) = part.finish(up_to(left, arguments.block));
          }
        }
      });
}

// Blocks of several rows, with a single column or as many columns as rows.
template <typename Input, typename ScaleFormat, typename X, CodePairs pairs, bool squares,
          typename Thread>
TELENS_DEVICE void errors_down_columns(const BlockErrorsArguments& arguments,
                                       const Thread& thread) {
  using Cast = CastOfThread<X, pairs>;
  constexpr int kParts = squares ? 1 : kColumnsOfThread;
  const CastMatrix& matrix = arguments.matrix;
  const StoredScales<ScaleFormat> stored(matrix.codes);
  const std::int64_t block = arguments.block;
  for_each_strip(thread, count_tiles(matrix.x.rows, block), matrix.x.columns,
                 [&](std::int64_t strip, std::int64_t column) {
                   const std::int64_t left = matrix.x.columns - column;
                   const int count = static_cast<int>(up_to(left, kColumnsOfThread));
                   const std::int64_t row0 = strip * block;
                   const std::int64_t end = up_to(matrix.x.rows, row0 + block);
                   const bool is_inside = row0 < matrix.x.rows && column < matrix.x.columns;
                   PartOfBlock parts[kParts];
                   const Eight<float> scales =
                       is_inside ? stored.of_eight(row0, column) : Eight<float>{};
                   for (std::int64_t row = row0; is_inside && row < end; row += Cast::kRows) {
                     Cast cast;
                     cast.load(matrix, row / Cast::Codes::kLinesOfByte, column);
                     TELENS_UNROLL
                     for (int i = 0; i < Cast::kRows; ++i) {
                       if (row + i >= end) continue;
                       cast.template visit_row<Input>(
                           i, count, scales, [&](int c, float before, float after, float scale) {
                             parts[squares ? 0 : c].template add<Input>(before, after, scale);
                           });
                     }
                   }
                   if constexpr (squares) {
                     parts[0].merge(thread, arguments.block / kColumnsOfThread);
                     if (is_inside && column % block == 0) {
                       arguments.at(strip, column / block) =
                           parts[0].finish((end - row0) * up_to(left, block));
                     }
                   } else {
                     TELENS_UNROLL
                     for (int c = 0; c < kColumnsOfThread; ++c) {
                       if (is_inside && c < count) {
                         arguments.at(strip, column + c) = parts[c].finish(end - row0);
                       }
                     }
                   }
                 });
}

}  // namespace detail

template <typename Input, typename ScaleFormat, typename X, CodePairs pairs,
          BlockDirection direction, typename Thread>
TELENS_DEVICE void block_cast_errors(const BlockErrorsArguments& arguments, const Thread& thread) {
  if constexpr (direction == BlockDirection::along_rows) {
    detail::errors_along_rows<Input, ScaleFormat, X, pairs>(arguments, thread);
  } else {
    detail::errors_down_columns<Input, ScaleFormat, X, pairs, direction == BlockDirection::squares>(
        arguments, thread);
  }
}

// ---- The difference of the two copies of a matrix in a block format.

// Both are row-major. Two codes may share a byte: along a row in the first copy, down a column in
// the second. A copy may then be padded by one row or column.
struct CopiesArguments {
  CodedMatrix first;
  CodedMatrix second;
  const float* values;  // the second copy's values, [rows, columns]; nullptr: use its codes
  std::int64_t rows;
  std::int64_t columns;
  bool whole;               // columns are a multiple of 8, everything is aligned to packs of 8
  CopiesDifference* parts;  // one per thread block
};

// Rows of values that a thread compares at once.
inline constexpr int kCopiesRows = 4;
inline constexpr int kCopiesTileRows = kRowGroups * kCopiesRows;

// Resident thread blocks per multiprocessor.
inline constexpr int kCopiesResident = blocks_with(128);

constexpr std::int64_t copies_grid(std::int64_t rows, std::int64_t columns) {
  return grid_that_adds_up(tiles_of_matrix(rows, columns, kCopiesTileRows), kCopiesResident);
}

namespace detail {

TELENS_DEVICE void add_difference(float a, float b, CopiesDifference& sums) {
  if (a == b || (a != a && b != b)) return;
  const float left = get_magnitude(a);
  const float right = get_magnitude(b);
  ++sums.different;
  sums.relative += get_magnitude(a - b) / (left > right ? left : right);
}

// Eight columns in a few rows of the two copies.
template <typename Input, typename ScaleFormat, bool packed, bool decoded>
struct CopiesOfThread {
  CodesOfThread<packed ? CodePairs::along_row : CodePairs::none, kCopiesRows> first;
  static constexpr int kLines = packed ? 2 : 1;
  CodesOfThread<packed ? CodePairs::down_columns : CodePairs::none, kCopiesRows / kLines> second;
  EightWords<std::uint32_t> values[kCopiesRows];

  template <bool whole>
  TELENS_DEVICE void load(const CopiesArguments& arguments, std::int64_t row, std::int64_t column) {
    first.template load<whole>(arguments.first, row, column);
    if constexpr (decoded) {
      const BlockMatrix matrix{arguments.values, arguments.rows, arguments.columns};
      load_rows<std::uint32_t, whole>(matrix, row, column, values);
    } else {
      second.template load<whole>(arguments.second, row / kLines, column);
    }
  }

  TELENS_DEVICE EightWords<std::uint32_t> of_second(int i, const Eight<float>& scales) const {
    if constexpr (decoded) {
      return values[i];
    } else {
      return decode_eight<Input, FP32>(second.line(i / kLines, i % kLines), scales);
    }
  }
};

}  // namespace detail

template <typename Input, typename ScaleFormat, bool packed, bool decoded, typename Thread>
TELENS_DEVICE void copies_difference(const CopiesArguments& arguments, const Thread& thread,
                                     MergeShared<CopiesDifference>& shared) {
  const StoredScales<ScaleFormat> of_first(arguments.first);
  const StoredScales<ScaleFormat> of_second(arguments.second);
  CopiesDifference sums;
  for_each_tile<kCopiesTileRows>(
      thread, arguments.rows, arguments.columns,
      [&](std::int64_t tile_row, std::int64_t tile_column) {
        const std::int64_t row0 = tile_row + get_row<kCopiesRows>(thread);
        const std::int64_t column = tile_column + get_column(thread);
        if (column >= arguments.columns || row0 >= arguments.rows) return;
        detail::CopiesOfThread<Input, ScaleFormat, packed, decoded> copies;
        if (arguments.whole) {
          copies.template load<true>(arguments, row0, column);
        } else {
          copies.template load<false>(arguments, row0, column);
        }
        // Blocks of the second copy run down the columns: a thread's rows are in one block.
        const Eight<float> second_scales =
            decoded ? Eight<float>{} : of_second.of_eight(row0, column);
        TELENS_UNROLL
        for (int i = 0; i < kCopiesRows; ++i) {
          if (row0 + i >= arguments.rows) continue;
          const auto a = decode_eight<Input, FP32>(copies.first.line(i, 0),
                                                   of_first.of_eight(row0 + i, column));
          const auto b = copies.of_second(i, second_scales);
          TELENS_UNROLL
          for (int c = 0; c < kColumnsOfThread; ++c) {
            if (column + c >= arguments.columns) continue;
            detail::add_difference(bits_as<float>(a.at(c)), bits_as<float>(b.at(c)), sums);
          }
        }
      });
  if (thread.block() == 0 && thread.index() == 0) {
    sums.elements = arguments.rows * arguments.columns;
  }
  sums = merge_block(thread, sums, shared.of_warp);
  if (thread.index() == 0) arguments.parts[thread.block()] = sums;
}

}  // namespace telens::cuda
