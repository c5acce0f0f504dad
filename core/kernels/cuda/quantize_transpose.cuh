// A matrix -> its FP8 codes and those of its transpose, in one read: device code.
//
// A block takes tiles of 128 x 128. A thread encodes 4 x 8 elements, writes the rows out, turns
// its 4 x 8 codes into 8 words of 4 codes of one column, and leaves them in shared memory, where
// the columns come together for stores of 16 bytes, 8 of which are 128 consecutive bytes.
#pragma once

#include "core/kernels/cuda/block_tiles.cuh"
#include "core/kernels/cuda/quantize.cuh"

namespace telens::cuda {

// rows and columns are multiples of 16; x, codes and transposed are aligned to 16 bytes.
struct QuantizeTransposeArguments {
  const void* x;  // [rows, columns]
  std::int64_t rows;
  std::int64_t columns;
  const float* scale;
  float* amax;               // becomes max(amax, max |x|); nullptr: not wanted
  std::uint8_t* codes;       // [rows, columns]; nullptr: not wanted
  std::uint8_t* transposed;  // [columns, rows]
};

inline constexpr int kTransposeTile = kTileColumns;  // and as many rows

struct TransposeShared {
  // [column][word], a word being the codes of 4 consecutive rows. Groups of 4 words are swapped so
  // that the words that a warp writes lie in different banks.
  alignas(16) std::uint32_t words[kTransposeTile][kTransposeTile / 4];
  BlockMaximum maximum;
};

// The four words of columns 0 to 3 from the words of four rows: byte r of word c is byte c of row
// r.
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

// Where chunk `chunk` of a column lies.
TELENS_DEVICE int placed_chunk(int column, int chunk) {
  return chunk ^ ((column / kColumnsOfThread) % kChunksOfColumn);
}

// The thread's 4 rows of 8 codes, `first_row` being the first of them in the tile.
TELENS_DEVICE void leave_columns(const Pack<std::uint8_t, kColumnsOfThread> (&codes)[kRowsOfThread],
                                 int first_row, int first_column, TransposeShared& shared) {
  TELENS_UNROLL
  for (int half = 0; half < 2; ++half) {
    std::uint32_t rows[4];
    std::uint32_t columns[4];
    TELENS_UNROLL
    for (int row = 0; row < 4; ++row) {
      const std::uint8_t* bytes = codes[row].values + 4 * half;
      rows[row] =
          bytes[0] | bytes[1] << 8 | bytes[2] << 16 | static_cast<std::uint32_t>(bytes[3]) << 24;
    }
    transpose_bytes(rows, columns);
    const int word = first_row / 4;
    TELENS_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int column = first_column + 4 * half + i;
      shared.words[column][4 * placed_chunk(column, word / 4) + word % 4] = columns[i];
    }
  }
}

}  // namespace detail

template <typename Input, typename Output, typename Thread>
TELENS_DEVICE void quantize_transpose(const QuantizeTransposeArguments& arguments,
                                      const Thread& thread, TransposeShared& shared) {
  using namespace detail;
  using Bits = typename Input::Bits;
  const Scale scale = Scale::from(*arguments.scale);
  const std::int64_t rows = arguments.rows;
  const std::int64_t columns = arguments.columns;
  const std::int64_t tiles_across = (columns + kTransposeTile - 1) / kTransposeTile;
  const std::int64_t tiles = tiles_across * ((rows + kTransposeTile - 1) / kTransposeTile);
  const int first_column = thread.index() % kThreadsAcross * kColumnsOfThread;
  const int first_row = thread.index() / kThreadsAcross * kRowsOfThread;
  std::uint32_t largest = 0;

  for (std::int64_t tile = thread.block(); tile < tiles; tile += thread.blocks()) {
    const std::int64_t row0 = tile / tiles_across * kTransposeTile;
    const std::int64_t column0 = tile % tiles_across * kTransposeTile;
    const std::int64_t column = column0 + first_column;

    Pack<Bits, kColumnsOfThread> x[kPasses][kRowsOfThread] = {};
    TELENS_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      TELENS_UNROLL
      for (int i = 0; i < kRowsOfThread; ++i) {
        const std::int64_t row = row0 + pass * kRowsOfPass + first_row + i;
        if (row < rows && column < columns) {
          x[pass][i] = load_pack<kColumnsOfThread>(static_cast<const Bits*>(arguments.x) +
                                                   row * columns + column);
        }
      }
    }
    TELENS_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      Pack<std::uint8_t, kColumnsOfThread> codes[kRowsOfThread];
      TELENS_UNROLL
      for (int i = 0; i < kRowsOfThread; ++i) {
        codes[i] = quantize_pack<Input, Output>(x[pass][i], scale, largest);
        const std::int64_t row = row0 + pass * kRowsOfPass + first_row + i;
        if (arguments.codes != nullptr && row < rows && column < columns) {
          store_pack(arguments.codes + row * columns + column, codes[i]);
        }
      }
      leave_columns(codes, pass * kRowsOfPass + first_row, first_column, shared);
    }
    thread.sync();

    for (int i = thread.index(); i < kTransposeTile * kChunksOfColumn; i += kThreads) {
      const int of_column = i / kChunksOfColumn;
      const int chunk = i % kChunksOfColumn;
      const std::int64_t row = row0 + 16 * chunk;
      if (column0 + of_column < columns && row < rows) {
        const auto words =
            load_pack<4>(&shared.words[of_column][4 * placed_chunk(of_column, chunk)]);
        store_pack(reinterpret_cast<std::uint32_t*>(arguments.transposed +
                                                    (column0 + of_column) * rows + row),
                   words);
      }
    }
    thread.sync();  // before the next tile overwrites the columns
  }
  if (arguments.amax != nullptr) {
    update_amax<Input>(thread, largest, arguments.amax, shared.maximum);
  }
}

}  // namespace telens::cuda
