// Device code. The errors of a cast in each block of a tensor.
//
// A thread processes eight columns of a block's rows. If blocks run along the rows, this is one
// row, and the threads that share a block add their sums by shuffles. If blocks run down the
// columns, it is all rows of the block.
#pragma once

#include "core/kernels/cuda/statistics/statistics_block_casts.cuh"
#include "core/ops/statistics_layout.h"

namespace telens::cuda {

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

}  // namespace telens::cuda
