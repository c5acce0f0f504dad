// Device code. Stores the codes of a thread's elements, one or two per byte.
#pragma once

#include "core/kernels/cuda/blocks/block_tiles.cuh"

namespace telens::cuda {

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

}  // namespace telens::cuda
