// Device code. Quantizes a matrix with block scales, for every block format. A Scaling defines how
// blocks become scales and elements become codes, like core/kernels/cpu/quantize/block_tiles.h:
//   using ScaleCode = ...;                           how a scale is stored
//   static constexpr int kBlock                      elements along a block
//   static constexpr NanInMaximum kNan
//   static constexpr bool kTwoCodesAByte
//   static constexpr bool kOneScaleASquare           otherwise one per line of the square
//   static constexpr bool kScalesLines               each row, or column, has a parameter
//   BlockScale<ScaleCode> get_scale(float amax) const, or get_scale(float amax, std::int64_t line)
//   EightWords<std::uint8_t> encode<Input, whole>(x, index, get_factor) const
//       the codes of x[i] * get_factor(i), one per byte; index: of x[0] in the whole matrix, a
//       multiple of 8 if `whole`
#pragma once

#include "core/kernels/cuda/blocks/block_tiles.cuh"
#include "core/kernels/cuda/quantize/amax.cuh"

namespace telens::cuda {

// ---- Stores the codes of a thread's elements, one or two per byte.

// Stores the codes of a row, one code per byte.
template <bool whole>
TELENS_DEVICE void store_codes(std::uint8_t* codes, const BlockMatrix& matrix, std::int64_t row,
                               std::int64_t column, const EightWords<std::uint8_t>& of_row) {
  if (row >= matrix.rows) return;
  store_within<whole>(codes + row * matrix.columns, column, matrix.columns, of_row);
}

// Stores the codes of a row, two neighbors per byte. If the last byte has only one code, its upper
// half is zero.
template <bool whole>
TELENS_DEVICE void store_pairs_along_row(std::uint8_t* codes, const BlockMatrix& matrix,
                                         std::int64_t row, std::int64_t column,
                                         const EightWords<std::uint8_t>& of_row) {
  if (row >= matrix.rows) return;
  // Combines each byte with the upper half of the byte above, then keeps every second byte.
  const auto merged = [](std::uint32_t four) { return four | four >> 4; };
  Words<std::uint8_t, kColumnsOfThread / 2> bytes{
      {permute_bytes(merged(of_row.words[0]), merged(of_row.words[1]), 0x6420)}};
  const std::int64_t left = matrix.columns - column;
  if (!whole && 0 < left && left < kColumnsOfThread) {
    bytes.words[0] &= 0xffffffffU >> (4 * (kColumnsOfThread - left));
  }
  const std::int64_t width = (matrix.columns + 1) / 2;
  store_within<whole>(codes + row * width, column / 2, width, bytes);
}

// Stores the codes of two rows, the first of which is even, with two neighbors of a column per
// byte.
template <bool whole>
TELENS_DEVICE void store_pairs_down_columns(std::uint8_t* codes, const BlockMatrix& matrix,
                                            std::int64_t row, std::int64_t column,
                                            const EightWords<std::uint8_t>& upper,
                                            const EightWords<std::uint8_t>& lower) {
  if (row >= matrix.rows) return;
  const bool has_second = row + 1 < matrix.rows;
  EightWords<std::uint8_t> bytes;
  TELENS_UNROLL
  for (int i = 0; i < bytes.kWords; ++i) {
    bytes.words[i] = upper.words[i] | (has_second ? lower.words[i] << 4 : 0);
  }
  store_within<whole>(codes + row / 2 * matrix.columns, column, matrix.columns, bytes);
}

// Stores the codes of a thread's rows in the rowwise and in the columnwise orientation.
template <bool two_a_byte, bool whole, int rows>
TELENS_DEVICE void store_rowwise(std::uint8_t* codes, const BlockMatrix& matrix, std::int64_t row,
                                 std::int64_t column,
                                 const EightWords<std::uint8_t> (&of_rows)[rows]) {
  TELENS_UNROLL
  for (int i = 0; i < rows; ++i) {
    if constexpr (two_a_byte) {
      store_pairs_along_row<whole>(codes, matrix, row + i, column, of_rows[i]);
    } else {
      store_codes<whole>(codes, matrix, row + i, column, of_rows[i]);
    }
  }
}

template <bool two_a_byte, bool whole, int rows>
TELENS_DEVICE void store_columnwise(std::uint8_t* codes, const BlockMatrix& matrix,
                                    std::int64_t row, std::int64_t column,
                                    const EightWords<std::uint8_t> (&of_rows)[rows]) {
  if constexpr (two_a_byte) {
    TELENS_UNROLL
    for (int i = 0; i < rows; i += 2) {
      store_pairs_down_columns<whole>(codes, matrix, row + i, column, of_rows[i], of_rows[i + 1]);
    }
  } else {
    store_rowwise<false, whole>(codes, matrix, row, column, of_rows);
  }
}

// One thread's part of a tile.
template <typename Input, typename Scaling, bool whole>
struct TilePart {
  using Bits = typename Input::Bits;
  using Shape = TileShape<Scaling::kBlock>;
  using Maxima = Magnitudes<Input, Scaling::kNan>;
  static constexpr int kRows = Shape::kRowsOfThread;
  static constexpr bool kWhole = whole;

  const BlockMatrix& matrix;
  std::int64_t tile_row;
  std::int64_t tile_column;
  int row_in_tile;
  int column_in_tile;
  EightWords<Bits> x[kRows];

  template <typename Thread>
  TELENS_DEVICE TilePart(const BlockMatrix& of, std::int64_t first_row, std::int64_t first_column,
                         const Thread& thread)
      : matrix(of),
        tile_row(first_row),
        tile_column(first_column),
        row_in_tile(get_row<kRows>(thread)),
        column_in_tile(get_column(thread)) {
    load_rows<Bits, whole>(matrix, row(), column(), x);
  }

  TELENS_DEVICE std::int64_t row() const { return tile_row + row_in_tile; }
  TELENS_DEVICE std::int64_t column() const { return tile_column + column_in_tile; }

  // Returns the codes of row i.
  template <typename FactorOf>
  TELENS_DEVICE EightWords<std::uint8_t> encode(const Scaling& scaling, int i,
                                                const FactorOf& get_factor) const {
    const std::int64_t index = (row() + i) * matrix.columns + column();
    return scaling.template encode<Input, whole>(x[i], index, get_factor);
  }

  // The largest magnitude per column.
  using Columns = typename Maxima::template MaximaOf<kColumnsOfThread>;
  TELENS_DEVICE Columns column_maxima() const {
    Columns maxima = Maxima::of(x[0]);
    TELENS_UNROLL
    for (int i = 1; i < kRows; ++i) {
      const Columns of_row = Maxima::of(x[i]);
      TELENS_UNROLL
      for (int word = 0; word < kWords; ++word) {
        maxima.values[word] = Maxima::larger(maxima.values[word], of_row.values[word]);
      }
    }
    return maxima;
  }
  static constexpr int kWords = kColumnsOfThread / kLanes<Input>;
};

// Returns the maximum over the lanes of a warp whose numbers differ in the bits below `lanes`.
template <typename Thread>
TELENS_DEVICE std::uint32_t largest_of_lanes(const Thread& thread, std::uint32_t value, int lanes) {
  TELENS_UNROLL
  for (int mask = 1; mask < lanes; mask *= 2) {
    const std::uint32_t other = thread.shuffle_xor(value, mask);
    value = other > value ? other : value;
  }
  return value;
}

// ---- Blocks along the rows, along the columns, or both in one read.
//
// Threads that share a row of a block are neighbors in a warp and find its maximum by shuffles.
// Column maxima are collected in shared memory, where one thread computes the scale of one column's
// block and stores its factor for all threads.

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

// ---- One scale per square of a block's length, for both orientations.

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
