// The blocks of core/ops/four_over_six_formula.h in memory: reads, encodes and stores the block
// with a given index. For every device. No LibTorch.
#pragma once

#include <cstdint>

#include "core/ops/four_over_six_formula.h"

namespace telens::four_over_six {

// The memory of both orientations of a matrix [rows, columns], contiguous, in the layout of
// core/ops/block_quantize.h. codes is nullptr if the orientation is not requested.
struct Output {
  std::uint8_t* codes;
  std::uint8_t* scales;
};

// The inputs for the scales of lines, which are rows, or columns if blocks run down the columns.
struct LineScales {
  const float* amaxes;  // the largest magnitudes that are not NaN
  bool by_line;         // true if there is one per line, false if there is one for the tensor
  FourOverSix choice;

  TELENS_HOST_DEVICE TensorScale of(std::int64_t line) const {
    return TensorScale::of(amaxes[by_line ? line : 0], choice);
  }
  // Element i of the tensor's scales.
  TELENS_HOST_DEVICE float tensor_scale(std::int64_t i) const { return of(i).scaling.tensor_scale; }
};

struct Matrix {
  std::int64_t rows;
  std::int64_t columns;

  TELENS_HOST_DEVICE std::int64_t blocks_across() const { return (columns + kBlock - 1) / kBlock; }
  TELENS_HOST_DEVICE std::int64_t blocks_down() const { return (rows + kBlock - 1) / kBlock; }
  TELENS_HOST_DEVICE int rows_at(std::int64_t block) const { return count(rows, block); }
  TELENS_HOST_DEVICE int columns_at(std::int64_t block) const { return count(columns, block); }

 private:
  static TELENS_HOST_DEVICE int count(std::int64_t size, std::int64_t block) {
    const std::int64_t left = size - block * kBlock;
    return left < kBlock ? static_cast<int>(left) : kBlock;
  }
};

TELENS_HOST_DEVICE inline void store(std::uint8_t* bytes, std::int64_t stride, std::uint64_t codes,
                                     int count) {
  for (int i = 0; 2 * i < count; ++i) {
    bytes[i * stride] = static_cast<std::uint8_t>(codes >> (8 * i));
  }
}

TELENS_HOST_DEVICE inline void store_along_row(const Output& rowwise, const Matrix& matrix,
                                               std::int64_t row, std::int64_t block,
                                               const EncodedBlock& encoded) {
  const std::int64_t bytes_of_row = (matrix.columns + 1) / 2;
  store(rowwise.codes + row * bytes_of_row + block * (kBlock / 2), 1, encoded.codes,
        matrix.columns_at(block));
  rowwise.scales[row * matrix.blocks_across() + block] = encoded.scale;
}

// Quantizes block `index` of the rows' blocks, counted row by row.
template <typename Load>
TELENS_HOST_DEVICE void quantize_along_row(const Load& load, const Matrix& matrix,
                                           const LineScales& scales, const Output& rowwise,
                                           std::int64_t index) {
  const std::int64_t row = index / matrix.blocks_across();
  const std::int64_t block = index % matrix.blocks_across();
  const Line line{row * matrix.columns + block * kBlock, 1, matrix.columns_at(block)};
  store_along_row(rowwise, matrix, row, block, encode_block(load, line, scales.of(row)));
}

// Quantizes block `index` of the columns' blocks, counted along each band of sixteen rows.
template <typename Load>
TELENS_HOST_DEVICE void quantize_down_column(const Load& load, const Matrix& matrix,
                                             const LineScales& scales, const Output& columnwise,
                                             std::int64_t index) {
  const std::int64_t block = index / matrix.columns;
  const std::int64_t column = index % matrix.columns;
  const Line line{block * kBlock * matrix.columns + column, matrix.columns, matrix.rows_at(block)};
  const EncodedBlock encoded = encode_block(load, line, scales.of(column));
  store(columnwise.codes + block * (kBlock / 2) * matrix.columns + column, matrix.columns,
        encoded.codes, line.count);
  columnwise.scales[index] = encoded.scale;
}

// Quantizes square `index`, counted along each band of sixteen rows. Stores its scale once per row
// and once per column.
template <typename Load>
TELENS_HOST_DEVICE void quantize_square(const Load& load, const Matrix& matrix,
                                        const LineScales& scales, const Output& rowwise,
                                        const Output& columnwise, std::int64_t index) {
  const std::int64_t down = index / matrix.blocks_across();
  const std::int64_t across = index % matrix.blocks_across();
  const int rows = matrix.rows_at(down);
  const int columns = matrix.columns_at(across);
  const Line first{down * kBlock * matrix.columns + across * kBlock, 1, columns};
  const EncodedSquare square = encode_square(load, first, rows, matrix.columns, scales.of(0));
  if (rowwise.codes != nullptr) {
    for (int row = 0; row < rows; ++row) {
      store_along_row(rowwise, matrix, down * kBlock + row, across,
                      {square.rows[row], square.scale});
    }
  }
  if (columnwise.codes == nullptr) return;
  for (int column = 0; column < columns; ++column) {
    std::uint64_t codes = 0;
    for (int row = 0; row < rows; ++row) {
      codes |= (square.rows[row] >> (4 * column) & 0xfU) << (4 * row);
    }
    const std::int64_t x = across * kBlock + column;
    store(columnwise.codes + down * (kBlock / 2) * matrix.columns + x, matrix.columns, codes, rows);
    columnwise.scales[x * matrix.blocks_down() + down] = square.scale;
  }
}

}  // namespace telens::four_over_six
