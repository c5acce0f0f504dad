// Device code. Transposes FP8 codes, while quantizing or afterwards.
//
// A block processes tiles of 128 x 128 codes. A thread has 4 x 8 codes of a tile. It transposes
// them to 8 words of 4 codes from the same column, and writes these to shared memory. Then all
// threads store columns in packs of 16 bytes, 8 of which are 128 consecutive bytes.
#pragma once

#include "core/kernels/cuda/blocks/block_tiles.cuh"
#include "core/kernels/cuda/quantize/quantize.cuh"
#include "core/kernels/cuda/words.cuh"

namespace telens::cuda {

// ---- A tile of codes in shared memory, arranged by columns.

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

// ---- A matrix -> its FP8 codes, the codes of its transpose, and its column sums, in one pass. The
// matrix is read from memory or computed by a source (fused_quantize.cuh).

// The cast of a matrix whose rows and columns are multiples of 16. Codes are aligned to 16
// bytes.
struct TileCast {
  std::int64_t rows;
  std::int64_t columns;
  const float* scale;        // scale of the codes; nullptr if there are none
  float* amax;               // becomes max(amax, max |x|); nullptr if not requested
  std::uint8_t* codes;       // [rows, columns]; nullptr if not requested
  std::uint8_t* transposed;  // [columns, rows]; nullptr if not requested
  // [rows / 128 rounded up, columns]: the sums over each tile's rows; nullptr if not requested.
  float* column_sums;
};

// rows and columns are multiples of 16; x, codes and transposed are aligned to 16 bytes.
struct QuantizeTransposeArguments {
  const void* x;  // [rows, columns]
  std::int64_t rows;
  std::int64_t columns;
  const float* scale;
  float* amax;               // becomes max(amax, max |x|); nullptr if not requested
  std::uint8_t* codes;       // [rows, columns]; nullptr if not requested
  std::uint8_t* transposed;  // [columns, rows]; nullptr if not requested
  float* column_sums = nullptr;

  TELENS_DEVICE TileCast cast() const {
    return {rows, columns, scale, amax, codes, transposed, column_sums};
  }
};

struct TransposeShared {
  TransposeTile tile;
  float sums[kRowGroups][kTransposeTile];  // sums over a thread's rows
  BlockMaximum maximum;
};

namespace detail {

// The sums of a thread's columns over its rows, in row order. Rows beyond the matrix are zeros.
struct ColumnSums {
  float sums[kColumnsOfThread] = {};

  template <typename Input>
  TELENS_DEVICE void add(const Words<typename Input::Bits, kColumnsOfThread> (&x)[kRowsOfThread]) {
    TELENS_UNROLL
    for (int j = 0; j < kColumnsOfThread; ++j) {
      TELENS_UNROLL
      for (int i = 0; i < kRowsOfThread; ++i) sums[j] += widen_at<Input>(x[i], j);
    }
  }

  TELENS_DEVICE void leave(int thread, TransposeShared& shared) const {
    TELENS_UNROLL
    for (int j = 0; j < kColumnsOfThread; ++j) {
      shared.sums[thread / kThreadsAcross][thread % kThreadsAcross * kColumnsOfThread + j] =
          sums[j];
    }
  }
};

TELENS_DEVICE float sum_of_column(int column, const TransposeShared& shared) {
  float sum = 0;
  for (int group = 0; group < kRowGroups; ++group) sum += shared.sums[group][column];
  return sum;
}

// Fetches fetched[i] for the rows from `row` on, which are all inside the matrix or all outside.
// Loads have no individual conditions, so that all are in flight before the first is used.
template <typename Source, int rows>
TELENS_DEVICE void fetch_rows(const Source& source, std::int64_t row, std::int64_t column,
                              typename Source::Fetched (&fetched)[rows]) {
  TELENS_UNROLL
  for (int i = 0; i < rows; ++i) fetched[i] = source.fetch(row + i, column);
}

}  // namespace detail

// A source computes 8 elements of a row, in two steps:
//   using Fetched = ...; Fetched fetch(row, column) const                 only loads
//   using Columns = ...; Columns of_columns(column) const                 shared by all rows
//   Words<Bits, 8> finish(const Fetched&, const Columns&) const           as bits of Input
//   static constexpr bool kFetchesTile                                    false: half a tile at a
//                                                                         time
// encode(words, scale, largest) returns their codes.
template <typename Input, typename Source, typename Encode, typename Thread>
TELENS_DEVICE void cast_tiles(const TileCast& cast, const Source& source, const Encode& encode,
                              const Thread& thread, TransposeShared& shared) {
  using namespace detail;
  using Elements = Words<typename Input::Bits, kColumnsOfThread>;
  const Scale scale = Scale::from(cast.scale != nullptr ? *cast.scale : 1.0F);
  const std::int64_t tiles_across = count_tiles(cast.columns, kTransposeTile);
  const std::int64_t tiles = tiles_across * count_tiles(cast.rows, kTransposeTile);
  const int first_column = thread.index() % kThreadsAcross * kColumnsOfThread;
  const int first_row = thread.index() / kThreadsAcross * kRowsOfThread;
  std::uint32_t largest = 0;

  for (std::int64_t tile = thread.block(); tile < tiles; tile += thread.blocks()) {
    const std::int64_t band = quotient_of_tiles(tile, tiles_across);
    const std::int64_t row0 = band * kTransposeTile;
    const std::int64_t column0 = (tile - band * tiles_across) * kTransposeTile;
    const std::int64_t column = column0 + first_column;
    // The thread's rows in a pass, 4 of 16, are all inside the matrix or all outside.
    const auto is_inside = [&](int pass) {
      return row0 + pass * kRowsOfPass + first_row < cast.rows && column < cast.columns;
    };
    const auto row_of_pass = [&](int pass) { return row0 + pass * kRowsOfPass + first_row; };

    typename Source::Fetched fetched[kPasses][kRowsOfThread];
    typename Source::Columns of_columns{};
    if (is_inside(0)) of_columns = source.of_columns(column);
    if constexpr (Source::kFetchesTile) {
      if (is_inside(kPasses - 1)) {
        TELENS_UNROLL
        for (int pass = 0; pass < kPasses; ++pass) {
          fetch_rows(source, row_of_pass(pass), column, fetched[pass]);
        }
      } else if (is_inside(0)) {
        fetch_rows(source, row_of_pass(0), column, fetched[0]);
      }
    }
    ColumnSums sums;
    TELENS_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      const bool inside = is_inside(pass);
      Fp8Words<kColumnsOfThread> codes[kRowsOfThread] = {};
      if (inside) {
        if constexpr (!Source::kFetchesTile) {
          fetch_rows(source, row_of_pass(pass), column, fetched[pass]);
        }
        Elements x[kRowsOfThread];
        TELENS_UNROLL
        for (int i = 0; i < kRowsOfThread; ++i) x[i] = source.finish(fetched[pass][i], of_columns);
        if (cast.column_sums != nullptr) sums.template add<Input>(x);
        TELENS_UNROLL
        for (int i = 0; i < kRowsOfThread; ++i) codes[i] = encode(x[i], scale, largest);
        if (cast.codes != nullptr) {
          TELENS_UNROLL
          for (int i = 0; i < kRowsOfThread; ++i) {
            store_words(cast.codes + (row_of_pass(pass) + i) * cast.columns + column, codes[i]);
          }
        }
      }
      leave_columns(codes, pass * kRowsOfPass + first_row, first_column, shared.tile);
    }
    if (cast.column_sums != nullptr) sums.leave(thread.index(), shared);
    thread.sync();

    if (cast.transposed != nullptr) {
      store_columns(thread, shared.tile, row0, column0, cast.rows, cast.columns, cast.transposed);
    }
    if (cast.column_sums != nullptr && thread.index() < kTransposeTile &&
        column0 + thread.index() < cast.columns) {
      cast.column_sums[band * cast.columns + column0 + thread.index()] =
          sum_of_column(thread.index(), shared);
    }
    thread.sync();  // before the next tile overwrites the columns
  }
  if (cast.amax != nullptr) {
    update_amax<Input>(thread, largest_lane<Input>(largest), cast.amax, shared.maximum);
  }
}

// The Columns of a source without data shared by rows.
struct NoColumns {};

template <typename Input>
struct MatrixSource {
  using Fetched = Words<typename Input::Bits, kColumnsOfThread>;
  using Columns = NoColumns;
  static constexpr bool kFetchesTile = true;

  const typename Input::Bits* x;
  std::int64_t columns;

  TELENS_DEVICE Fetched fetch(std::int64_t row, std::int64_t column) const {
    return load_words<kColumnsOfThread>(x + row * columns + column);
  }
  TELENS_DEVICE Columns of_columns(std::int64_t) const { return {}; }
  TELENS_DEVICE Fetched finish(const Fetched& fetched, const Columns&) const { return fetched; }
};

template <typename Input, typename Output, typename Thread>
TELENS_DEVICE void quantize_transpose(const QuantizeTransposeArguments& arguments,
                                      const Thread& thread, TransposeShared& shared) {
  using Bits = typename Input::Bits;
  const MatrixSource<Input> source{static_cast<const Bits*>(arguments.x), arguments.columns};
  const auto encode = [](const auto& x, const Scale& scale, std::uint32_t& largest) {
    return quantize_words<Input, Output>(x, scale, largest);
  };
  cast_tiles<Input>(arguments.cast(), source, encode, thread, shared);
}

// ---- Codes, one or two per byte, -> the transposed matrix of bytes. Two codes that share a byte
// are neighbors down a column, before and after: bytes are moved without changing them.

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
