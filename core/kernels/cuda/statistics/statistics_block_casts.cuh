// Device code. The errors of a block-scaled cast, in one read of the tensor and its codes.
#pragma once

#include "core/kernels/cuda/blocks/block_decode.cuh"
#include "core/kernels/cuda/statistics/sums.cuh"
#include "core/ops/scale_formula.h"

namespace telens::cuda {

// A tensor and its codes, both in the memory order of the codes. If two codes share a byte, x may
// have one row or column less.
struct CastMatrix {
  CodedMatrix codes;
  BlockMatrix x;
  bool whole;  // columns are a multiple of 8; x and codes are aligned to packs of 16 and 8 bytes
};

// Formats known at run time.
struct BlockCastKind {
  FormatId x;
  FormatId element;
  ScalingMode mode;
};

struct BlockCastArguments {
  CastMatrix matrix;
  CastSums* parts;  // one per thread block
};

// Resident thread blocks per multiprocessor.
inline constexpr int kBlockCastResident = blocks_with(128);

constexpr std::int64_t block_cast_grid(const CastMatrix& matrix) {
  const std::int64_t lines = matrix.codes.pairs == CodePairs::down_columns ? 2 : 1;
  return grid_that_adds_up(
      tiles_of_matrix(matrix.codes.rows / lines, matrix.x.columns, kDecodeTileRows),
      kBlockCastResident);
}

// Eight columns of a few rows of bytes: elements before and after the cast.
template <typename X, CodePairs pairs>
struct CastOfThread {
  using Codes = CodesOfThread<pairs>;
  static constexpr int kRows = kDecodeRows * Codes::kLinesOfByte;

  Codes codes;
  EightWords<typename X::Bits> x[kRows];

  TELENS_DEVICE void load(const CastMatrix& matrix, std::int64_t row_of_bytes,
                          std::int64_t column) {
    if (matrix.whole) {
      load_as<true>(matrix, row_of_bytes, column);
    } else {
      load_as<false>(matrix, row_of_bytes, column);
    }
  }

  // Visits row i with before(column) and after(column); zeros beyond the `count` valid columns.
  template <typename Input, typename Visit>
  TELENS_DEVICE void visit_row(int i, int count, const Eight<float>& scales,
                               const Visit& visit) const {
    const auto after = decode_eight<Input, FP32>(
        codes.line(i / Codes::kLinesOfByte, i % Codes::kLinesOfByte), scales);
    TELENS_UNROLL
    for (int c = 0; c < kColumnsOfThread; ++c) {
      visit(c, widen_at<X>(x[i], c), c < count ? bits_as<float>(after.at(c)) : 0.0F,
            scales.values[c]);
    }
  }

 private:
  template <bool whole>
  TELENS_DEVICE void load_as(const CastMatrix& matrix, std::int64_t row_of_bytes,
                             std::int64_t column) {
    codes.template load<whole>(matrix.codes, row_of_bytes, column);
    load_rows<typename X::Bits, whole>(matrix.x, row_of_bytes * Codes::kLinesOfByte, column, x);
  }
};

namespace detail {

// Adds eight elements of a row. Clipping is detected by a division, which runs only if clipping is
// possible.
template <typename Input, typename Cast>
TELENS_DEVICE void add_row(const Cast& cast, int i, int count, const Eight<float>& scales,
                           CastAccumulator& sums) {
  float errors[kColumnsOfThread];
  bool any_clipped = false;
  cast.template visit_row<Input>(
      i, count, scales, [&](int c, float before, float after, float scale) {
        const float magnitude = get_magnitude(before);
        sums.underflows += before != 0 && after == 0;
        sums.overflows += magnitude > scale * Input::kMax;
        any_clipped |= magnitude >= scale * kNearlyClipped<Input> && magnitude > 0;
        errors[c] = after - before;
      });
  sums.squared_error += sum_of_squares(errors);
  if (!any_clipped) return;
  cast.template visit_row<Input>(i, count, scales, [&](int, float before, float, float scale) {
    sums.saturated += is_clipped<Input>(get_magnitude(before), scale);
  });
}

}  // namespace detail

template <typename Input, typename ScaleFormat, typename X, CodePairs pairs, typename Thread>
TELENS_DEVICE void block_cast_statistics(const BlockCastArguments& arguments, const Thread& thread,
                                         MergeShared<CastSums>& shared) {
  using Cast = CastOfThread<X, pairs>;
  using Codes = typename Cast::Codes;
  const CastMatrix& matrix = arguments.matrix;
  const StoredScales<ScaleFormat> stored(matrix.codes);
  CastAccumulator sums{};
  ScaleExtremes extremes;
  for_each_tile<kDecodeTileRows>(
      thread, Codes::rows_of_bytes(matrix.codes), matrix.x.columns,
      [&](std::int64_t tile_row, std::int64_t tile_column) {
        const std::int64_t row0 = tile_row + get_row<kDecodeRows>(thread);
        const std::int64_t column = tile_column + get_column(thread);
        if (column >= matrix.x.columns) return;
        const std::int64_t left = matrix.x.columns - column;
        const int count = left < kColumnsOfThread ? static_cast<int>(left) : kColumnsOfThread;
        Cast cast;
        cast.load(matrix, row0, column);
        Eight<float> scales;
        TELENS_UNROLL
        for (int i = 0; i < Cast::kRows; ++i) {
          const std::int64_t row = row0 * Codes::kLinesOfByte + i;
          if (row >= matrix.x.rows) continue;
          // Rows that share scales are in groups of at least sixteen, so all rows of a thread share
          // them.
          if (i == 0 || matrix.codes.row_shift == 0) {
            scales = stored.of_eight(row, column);
            TELENS_UNROLL
            for (int c = 0; c < kColumnsOfThread; ++c) {
              if (c == 0 || (c < count && !stored.one_for_eight())) extremes.add(scales.values[c]);
            }
          }
          detail::add_row<Input>(cast, i, count, scales, sums);
        }
      });
  CastSums of_thread = sums.finish();
  extremes.finish(of_thread);
  if (thread.block() == 0 && thread.index() == 0) {
    of_thread.numel = matrix.x.rows * matrix.x.columns;
  }
  const CastSums of_block = merge_block(thread, of_thread, shared.of_warp);
  if (thread.index() == 0) arguments.parts[thread.block()] = of_block;
}

}  // namespace telens::cuda
