// Storing the codes of a thread's elements, one a byte or two: device code.
#pragma once

#include "core/kernels/cuda/block_tiles.cuh"

namespace telens::cuda {

// Of one row, one code a byte.
template <bool whole>
TELENS_DEVICE void store_codes(std::uint8_t* codes, const BlockMatrix& matrix, std::int64_t row,
                               std::int64_t column, const Eight<std::uint8_t>& of_row) {
  if (row >= matrix.rows) return;
  store_within<whole>(codes + row * matrix.columns, column, matrix.columns, of_row);
}

// Of one row, two neighbours a byte; the upper half of a byte without a second one is zero.
template <bool whole>
TELENS_DEVICE void store_pairs_along_row(std::uint8_t* codes, const BlockMatrix& matrix,
                                         std::int64_t row, std::int64_t column,
                                         const Eight<std::uint8_t>& of_row) {
  if (row >= matrix.rows) return;
  Pack<std::uint8_t, kColumnsOfThread / 2> bytes;
  TELENS_UNROLL
  for (int i = 0; i < kColumnsOfThread / 2; ++i) {
    const bool has_second = whole || column + 2 * i + 1 < matrix.columns;
    const int second = has_second ? of_row.values[2 * i + 1] << 4 : 0;
    bytes.values[i] = static_cast<std::uint8_t>(of_row.values[2 * i] | second);
  }
  const std::int64_t width = (matrix.columns + 1) / 2;
  store_within<whole>(codes + row * width, column / 2, width, bytes);
}

// Of two rows, the first an even one, two neighbours of a column a byte.
template <bool whole>
TELENS_DEVICE void store_pairs_down_columns(std::uint8_t* codes, const BlockMatrix& matrix,
                                            std::int64_t row, std::int64_t column,
                                            const Eight<std::uint8_t>& upper,
                                            const Eight<std::uint8_t>& lower) {
  if (row >= matrix.rows) return;
  const bool has_second = row + 1 < matrix.rows;
  Eight<std::uint8_t> bytes;
  TELENS_UNROLL
  for (int i = 0; i < kColumnsOfThread; ++i) {
    const int second = has_second ? lower.values[i] << 4 : 0;
    bytes.values[i] = static_cast<std::uint8_t>(upper.values[i] | second);
  }
  store_within<whole>(codes + row / 2 * matrix.columns, column, matrix.columns, bytes);
}

// The codes of a thread's rows as the rowwise and as the columnwise orientation have them.
template <bool two_a_byte, bool whole, int rows>
TELENS_DEVICE void store_rowwise(std::uint8_t* codes, const BlockMatrix& matrix, std::int64_t row,
                                 std::int64_t column, const Eight<std::uint8_t> (&of_rows)[rows]) {
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
                                    const Eight<std::uint8_t> (&of_rows)[rows]) {
  if constexpr (two_a_byte) {
    TELENS_UNROLL
    for (int i = 0; i < rows; i += 2) {
      store_pairs_down_columns<whole>(codes, matrix, row + i, column, of_rows[i], of_rows[i + 1]);
    }
  } else {
    store_rowwise<false, whole>(codes, matrix, row, column, of_rows);
  }
}

}  // namespace telens::cuda
