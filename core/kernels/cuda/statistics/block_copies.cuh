// Device code. The difference of the two copies of a matrix in a block format.
#pragma once

#include "core/kernels/cuda/blocks/block_decode.cuh"
#include "core/kernels/cuda/statistics/cast_sums.cuh"
#include "core/kernels/cuda/statistics/merge.cuh"
#include "core/ops/statistics_layout.h"

namespace telens::cuda {

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
