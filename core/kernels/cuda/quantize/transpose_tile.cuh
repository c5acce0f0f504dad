// Device code. A tile of codes in shared memory, arranged by columns.
//
// A thread has 4 x 8 codes of a 128 x 128 tile. It transposes them to 8 words of 4 codes from the
// same column, and writes these to shared memory. Then all threads store columns in packs of 16
// bytes, 8 of which are 128 consecutive bytes.
#pragma once

#include "core/kernels/cuda/blocks/block_tiles.cuh"
#include "core/kernels/cuda/words.cuh"

namespace telens::cuda {

inline constexpr int kTransposeTile = kTileColumns;  // and the number of rows

// [column][word]. A word, at placed_word(), has the codes of 4 consecutive rows.
struct TransposeTile {
  alignas(16) std::uint32_t words[kTransposeTile][kTransposeTile / 4];
};

// Transposes the words of four rows to the words of columns 0 to 3: byte r of word c is byte c of
// row r.
TELENS_DEVICE void transpose_bytes(const std::uint32_t (&rows)[4], std::uint32_t (&columns)[4]) {
  const std::uint32_t low01 = permute_bytes(rows[0], rows[1], 0x5140);   // 00 10 01 11
  const std::uint32_t high01 = permute_bytes(rows[0], rows[1], 0x7362);  // 02 12 03 13
  const std::uint32_t low23 = permute_bytes(rows[2], rows[3], 0x5140);
  const std::uint32_t high23 = permute_bytes(rows[2], rows[3], 0x7362);
  columns[0] = permute_bytes(low01, low23, 0x5410);
  columns[1] = permute_bytes(low01, low23, 0x7632);
  columns[2] = permute_bytes(high01, high23, 0x5410);
  columns[3] = permute_bytes(high01, high23, 0x7632);
}

namespace detail {

constexpr int kRowsOfThread = 4;
constexpr int kRowsOfPass = kThreads / kThreadsAcross * kRowsOfThread;  // 64
constexpr int kPasses = kTransposeTile / kRowsOfPass;                   // 2
constexpr int kWordsOfColumn = kTransposeTile / 4;                      // 32
constexpr int kChunksOfColumn = kWordsOfColumn / 4;                     // 8, of 16 bytes

// Returns the position of chunk `chunk` of a column. The threads of a row write to different groups
// of 4 banks, of which there are 8. The other 8 threads, with the columns from 64 on, write to the
// other half of each group.
TELENS_DEVICE int placed_chunk(int column, int chunk) {
  return chunk ^ ((column / kColumnsOfThread) % kChunksOfColumn);
}
TELENS_DEVICE bool has_halves_swapped(int column) { return column >= kTransposeTile / 2; }

// Returns the position in a column of the word with the rows 4 * word to 4 * word + 3. A warp
// writes two consecutive words, the first of which is even, of 16 columns 8 apart: each to a
// different bank.
TELENS_DEVICE int placed_word(int column, int word) {
  return 4 * placed_chunk(column, word / 4) + (word % 4 ^ (has_halves_swapped(column) ? 2 : 0));
}

// Writes the thread's 4 rows of 8 codes. `first_row` is the first of them in the tile.
TELENS_DEVICE void leave_columns(
    const Words<std::uint8_t, kColumnsOfThread> (&codes)[kRowsOfThread], int first_row,
    int first_column, TransposeTile& tile) {
  TELENS_UNROLL
  for (int half = 0; half < 2; ++half) {
    std::uint32_t rows[4];
    std::uint32_t columns[4];
    TELENS_UNROLL
    for (int row = 0; row < 4; ++row) rows[row] = codes[row].words[half];
    transpose_bytes(rows, columns);
    TELENS_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int column = first_column + 4 * half + i;
      tile.words[column][placed_word(first_column, first_row / 4)] = columns[i];
    }
  }
}

}  // namespace detail

// Stores the columns of the tile that begins at [row0, column0] of a matrix [rows, columns] with
// sides that are multiples of 16. Every thread must call it, after all threads have written their
// codes.
template <typename Thread>
TELENS_DEVICE void store_columns(const Thread& thread, const TransposeTile& tile, std::int64_t row0,
                                 std::int64_t column0, std::int64_t rows, std::int64_t columns,
                                 std::uint8_t* transposed) {
  using namespace detail;
  constexpr int kColumnsAtOnce = kThreads / kChunksOfColumn;  // 32
  const int chunk = thread.index() % kChunksOfColumn;
  const std::int64_t row = row0 + 16 * chunk;
  TELENS_UNROLL
  for (int first = 0; first < kTransposeTile; first += kColumnsAtOnce) {
    const int of_column = first + thread.index() / kChunksOfColumn;
    if (column0 + of_column < columns && row < rows) {
      Pack<std::uint32_t, 4> words =
          load_pack<4>(&tile.words[of_column][4 * placed_chunk(of_column, chunk)]);
      if (has_halves_swapped(first)) {
        words = {{words.values[2], words.values[3], words.values[0], words.values[1]}};
      }
      store_pack(reinterpret_cast<std::uint32_t*>(transposed + (column0 + of_column) * rows + row),
                 words);
    }
  }
}

}  // namespace telens::cuda
