// Device code. Quantizes with blocks along the rows, along the columns, or both in one read.
//
// Threads that share a row of a block are neighbors in a warp and find its maximum by shuffles.
// Column maxima are collected in shared memory, where one thread computes the scale of one column's
// block and stores its factor for all threads.
#pragma once

#include "core/kernels/cuda/quantize/block_scaling.cuh"

namespace telens::cuda {

template <typename Input, int block>
struct LinesShared {
  // The column maxima of a warp's part.
  alignas(16) typename Input::Bits maxima[kThreads / kWarp][kTileColumns];
  alignas(16) float factors[TileShape<block>::kBlocksDown][kTileColumns];
};

namespace detail {

// The scale of a block of `line`: a row, or a column if blocks run down the columns. `inside`: the
// block is in the matrix.
template <typename Scaling>
TELENS_DEVICE auto get_scale(const Scaling& scaling, float amax, std::int64_t line, bool inside) {
  if constexpr (Scaling::kScalesLines) {
    return scaling.get_scale(amax, inside ? line : 0);
  } else {
    return scaling.get_scale(amax);
  }
}

template <typename Part, typename Scaling, typename Thread>
TELENS_DEVICE void quantize_along_rows(const Part& part, const Scaling& scaling,
                                       const BlockOutput<typename Scaling::ScaleCode>& output,
                                       const Thread& thread) {
  using Maxima = typename Part::Maxima;
  const BlockMatrix& matrix = part.matrix;
  const std::int64_t row = part.row();
  const std::int64_t column = part.column();
  const bool has_scale = column % Scaling::kBlock == 0 && column < matrix.columns;
  EightWords<std::uint8_t> codes[Part::kRows];
  TELENS_UNROLL
  for (int i = 0; i < Part::kRows; ++i) {
    const std::uint32_t largest = largest_of_lanes(thread, Maxima::largest(Maxima::of(part.x[i])),
                                                   Part::Shape::kThreadsOfBlock);
    const bool inside = row + i < matrix.rows;
    const auto scale = get_scale(scaling, Maxima::value(largest), row + i, inside);
    if (has_scale && inside) {
      output.scale(column / Scaling::kBlock, row + i) = scale.stored;
    }
    codes[i] = part.encode(scaling, i, [&](int) { return scale.factor; });
  }
  store_rowwise<Scaling::kTwoCodesAByte, Part::kWhole>(output.codes, matrix, row, column, codes);
}

// Computes the scales of the blocks of a tile's columns. Each thread computes one at a time.
template <typename Part, typename Scaling, typename Thread, typename Shared>
TELENS_DEVICE void make_column_scales(const Part& part, const Scaling& scaling,
                                      const BlockOutput<typename Scaling::ScaleCode>& output,
                                      const Thread& thread, Shared& shared) {
  using Shape = typename Part::Shape;
  using Maxima = typename Part::Maxima;
  for (int i = thread.index(); i < Shape::kBlocksDown * kTileColumns; i += kThreads) {
    const int block = i / kTileColumns;
    const int column = i % kTileColumns;
    std::uint32_t largest = 0;
    TELENS_UNROLL
    for (int warp = 0; warp < Shape::kWarpsOfBlock; ++warp) {
      const std::uint32_t other = shared.maxima[block * Shape::kWarpsOfBlock + warp][column];
      largest = other > largest ? other : largest;
    }
    const bool has_column = part.tile_column + column < part.matrix.columns;
    const auto scale =
        get_scale(scaling, Maxima::value(largest), part.tile_column + column, has_column);
    shared.factors[block][column] = scale.factor;
    if (has_column && part.tile_row + block * Scaling::kBlock < part.matrix.rows) {
      output.scale(part.tile_row / Scaling::kBlock + block, part.tile_column + column) =
          scale.stored;
    }
  }
}

template <typename Part, typename Scaling, typename Thread, typename Shared>
TELENS_DEVICE void quantize_along_columns(const Part& part, const Scaling& scaling,
                                          const BlockOutput<typename Scaling::ScaleCode>& output,
                                          const Thread& thread, Shared& shared) {
  using Maxima = typename Part::Maxima;
  auto maxima = part.column_maxima();
  TELENS_UNROLL
  for (std::uint32_t& word : maxima.values) {
    word = Maxima::larger(word, thread.shuffle_xor(word, kThreadsAcross));
  }
  if (thread.index() % kWarp < kThreadsAcross) {
    store_pack(&shared.maxima[thread.index() / kWarp][part.column_in_tile],
               bits_as<Eight<typename Part::Bits>>(maxima));
  }
  thread.sync();
  make_column_scales(part, scaling, output, thread, shared);
  // This barrier also precedes the next tile's maxima. Its factors are written after that tile's
  // first barrier.
  thread.sync();

  const Eight<float> factors = load_pack<kColumnsOfThread>(
      &shared.factors[part.row_in_tile / Scaling::kBlock][part.column_in_tile]);
  EightWords<std::uint8_t> codes[Part::kRows];
  TELENS_UNROLL
  for (int i = 0; i < Part::kRows; ++i) {
    codes[i] = part.encode(scaling, i, [&](int column) { return factors.values[column]; });
  }
  store_columnwise<Scaling::kTwoCodesAByte, Part::kWhole>(output.codes, part.matrix, part.row(),
                                                          part.column(), codes);
}

}  // namespace detail

// One Scaling per orientation. `whole`: columns are a multiple of 8; x and codes are aligned to
// packs of 8.
template <typename Input, bool whole, typename Scaling, typename Thread>
TELENS_DEVICE void quantize_lines(const BlockMatrix& matrix,
                                  const BlockOutputs<typename Scaling::ScaleCode>& outputs,
                                  const Scaling& rowwise, const Scaling& columnwise,
                                  const Thread& thread,
                                  LinesShared<Input, Scaling::kBlock>& shared) {
  using Part = TilePart<Input, Scaling, whole>;
  for_each_tile<Part::Shape::kRows>(
      thread, matrix.rows, matrix.columns, [&](std::int64_t row, std::int64_t column) {
        const Part part(matrix, row, column, thread);
        if (outputs.rowwise.codes != nullptr) {
          detail::quantize_along_rows(part, rowwise, outputs.rowwise, thread);
        }
        if (outputs.columnwise.codes != nullptr) {
          detail::quantize_along_columns(part, columnwise, outputs.columnwise, thread, shared);
        }
      });
}

}  // namespace telens::cuda
