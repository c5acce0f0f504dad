// Device code. Quantizes with one scale per square of a block's length, for both orientations.
#pragma once

#include "core/kernels/cuda/quantize/block_scaling.cuh"

namespace telens::cuda {

template <int block>
struct SquaresShared {
  // The maxima of the squares that a warp covers partly.
  std::uint32_t maxima[kThreads / kWarp][TileShape<block>::kBlocksAcross];
};

namespace detail {

// Returns the largest magnitude of the thread's square.
template <typename Part, typename Thread, typename Shared>
TELENS_DEVICE float largest_of_square(const Part& part, const Thread& thread, Shared& shared) {
  using Shape = typename Part::Shape;
  using Maxima = typename Part::Maxima;
  std::uint32_t largest =
      largest_of_lanes(thread, Maxima::largest(part.column_maxima()), Shape::kThreadsOfBlock);
  const std::uint32_t below = thread.shuffle_xor(largest, kThreadsAcross);
  largest = below > largest ? below : largest;

  const int square = part.column_in_tile / (Shape::kThreadsOfBlock * kColumnsOfThread);
  const int warp = thread.index() / kWarp;
  const int lane = thread.index() % kWarp;
  if (lane < kThreadsAcross && lane % Shape::kThreadsOfBlock == 0) {
    shared.maxima[warp][square] = largest;
  }
  thread.sync();
  const int first_warp = warp / Shape::kWarpsOfBlock * Shape::kWarpsOfBlock;
  TELENS_UNROLL
  for (int i = 0; i < Shape::kWarpsOfBlock; ++i) {
    const std::uint32_t other = shared.maxima[first_warp + i][square];
    largest = other > largest ? other : largest;
  }
  thread.sync();  // before the next tile overwrites the maxima
  return Maxima::value(largest);
}

// Stores one scale per row (rowwise) and per column (columnwise) of the square, or one for the
// whole square. The first thread of a row stores its scale.
template <typename Scaling, typename Part, typename ScaleCode>
TELENS_DEVICE void store_square_scale(const Part& part, const BlockOutputs<ScaleCode>& outputs,
                                      ScaleCode scale) {
  const BlockMatrix& matrix = part.matrix;
  const std::int64_t row = part.row();
  const std::int64_t column = part.column();
  const bool first_of_row = column % Scaling::kBlock == 0 && column < matrix.columns;
  const bool first_of_column = row % Scaling::kBlock == 0 && row < matrix.rows;
  if constexpr (Scaling::kOneScaleASquare) {
    if (first_of_row && first_of_column) {
      outputs.rowwise.scale(column / Scaling::kBlock, row / Scaling::kBlock) = scale;
    }
    return;
  }
  if (outputs.rowwise.scales != nullptr && first_of_row) {
    for (std::int64_t i = row; i < row + Part::kRows && i < matrix.rows; ++i) {
      outputs.rowwise.scale(column / Scaling::kBlock, i) = scale;
    }
  }
  if (outputs.columnwise.scales != nullptr && first_of_column) {
    for (std::int64_t i = column; i < column + kColumnsOfThread && i < matrix.columns; ++i) {
      outputs.columnwise.scale(row / Scaling::kBlock, i) = scale;
    }
  }
}

}  // namespace detail

// Orientations with one scale per square or one code per byte share the memory of outputs.rowwise.
// `whole`: as in quantize_lines.
template <typename Input, bool whole, typename Scaling, typename Thread>
TELENS_DEVICE void quantize_squares(const BlockMatrix& matrix,
                                    const BlockOutputs<typename Scaling::ScaleCode>& outputs,
                                    const Scaling& scaling, const Thread& thread,
                                    SquaresShared<Scaling::kBlock>& shared) {
  using Part = TilePart<Input, Scaling, whole>;
  constexpr bool kPairs = Scaling::kTwoCodesAByte;
  for_each_tile<Part::Shape::kRows>(
      thread, matrix.rows, matrix.columns, [&](std::int64_t row, std::int64_t column) {
        const Part part(matrix, row, column, thread);
        const auto scale = scaling.get_scale(detail::largest_of_square(part, thread, shared));
        detail::store_square_scale<Scaling>(part, outputs, scale.stored);
        EightWords<std::uint8_t> codes[Part::kRows];
        TELENS_UNROLL
        for (int i = 0; i < Part::kRows; ++i) {
          codes[i] = part.encode(scaling, i, [&](int) { return scale.factor; });
        }
        if (outputs.rowwise.codes != nullptr) {
          store_rowwise<kPairs, whole>(outputs.rowwise.codes, matrix, part.row(), part.column(),
                                       codes);
        }
        if (kPairs && outputs.columnwise.codes != nullptr) {
          store_columnwise<kPairs, whole>(outputs.columnwise.codes, matrix, part.row(),
                                          part.column(), codes);
        }
      });
}

}  // namespace telens::cuda
