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

#include "core/kernels/cuda/quantize/block_codes.cuh"
#include "core/kernels/cuda/quantize/block_maxima.cuh"

namespace telens::cuda {

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

}  // namespace telens::cuda
