// Device code. Codes, one or two per byte, -> the transposed matrix of bytes. Two codes that share
// a byte are neighbors down a column, before and after: bytes are moved without changing them.
#pragma once

#include "core/kernels/cuda/quantize/transpose_tile.cuh"

namespace telens::cuda {

// rows and columns are multiples of 16; codes and transposed are aligned to 16 bytes.
struct TransposeCodesArguments {
  const std::uint8_t* codes;  // [rows, columns] bytes
  std::int64_t rows;
  std::int64_t columns;
  std::uint8_t* transposed;  // [columns, rows]
};

template <typename Thread>
TELENS_DEVICE void transpose_codes(const TransposeCodesArguments& arguments, const Thread& thread,
                                   TransposeTile& shared) {
  using namespace detail;
  const std::int64_t rows = arguments.rows;
  const std::int64_t columns = arguments.columns;
  const int first_column = get_column(thread);
  const int first_row = get_row<kRowsOfThread>(thread);
  for_each_tile<kTransposeTile>(
      thread, rows, columns, [&](std::int64_t row0, std::int64_t column0) {
        const std::int64_t column = column0 + first_column;
        Words<std::uint8_t, kColumnsOfThread> codes[kPasses][kRowsOfThread] = {};
        TELENS_UNROLL
        for (int pass = 0; pass < kPasses; ++pass) {
          TELENS_UNROLL
          for (int i = 0; i < kRowsOfThread; ++i) {
            const std::int64_t row = row0 + pass * kRowsOfPass + first_row + i;
            if (row < rows && column < columns) {
              codes[pass][i] =
                  load_words<kColumnsOfThread>(arguments.codes + row * columns + column);
            }
          }
        }
        TELENS_UNROLL
        for (int pass = 0; pass < kPasses; ++pass) {
          leave_columns(codes[pass], pass * kRowsOfPass + first_row, first_column, shared);
        }
        thread.sync();
        store_columns(thread, shared, row0, column0, rows, columns, arguments.transposed);
        thread.sync();  // before the next tile overwrites the columns
      });
}

}  // namespace telens::cuda
