// Device code. A matrix -> its FP8 codes, the codes of its transpose, and its column sums, in one
// pass. The matrix is read from memory or computed by a source (fused_quantize.cuh).
//
// A block processes tiles of 128 x 128. A thread encodes 4 x 8 elements, stores their rows, and
// writes their codes to shared memory, from where the columns are stored.
#pragma once

#include "core/kernels/cuda/quantize/quantize.cuh"
#include "core/kernels/cuda/quantize/transpose_tile.cuh"

namespace telens::cuda {

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

}  // namespace telens::cuda
