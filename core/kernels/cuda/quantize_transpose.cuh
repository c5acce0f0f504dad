// A matrix -> its FP8 codes, those of its transpose, and the sums of its columns, in one pass:
// device code. The matrix is read, or made on the way by a source (fused_quantize.cuh).
//
// A block takes tiles of 128 x 128. A thread encodes 4 x 8 elements, writes the rows out, and
// leaves its codes in shared memory, from where the columns are stored.
#pragma once

#include "core/kernels/cuda/quantize.cuh"
#include "core/kernels/cuda/transpose_tile.cuh"

namespace telens::cuda {

// What becomes of a matrix whose rows and columns are multiples of 16. Codes are aligned to 16
// bytes.
struct TileCast {
  std::int64_t rows;
  std::int64_t columns;
  const float* scale;        // of the codes; nullptr: there are none
  float* amax;               // becomes max(amax, max |x|); nullptr: not wanted
  std::uint8_t* codes;       // [rows, columns]; nullptr: not wanted
  std::uint8_t* transposed;  // [columns, rows]; nullptr: not wanted
  // [rows / 128 rounded up, columns]: the sums over each tile's rows; nullptr: not wanted.
  float* column_sums;
};

// rows and columns are multiples of 16; x, codes and transposed are aligned to 16 bytes.
struct QuantizeTransposeArguments {
  const void* x;  // [rows, columns]
  std::int64_t rows;
  std::int64_t columns;
  const float* scale;
  float* amax;               // becomes max(amax, max |x|); nullptr: not wanted
  std::uint8_t* codes;       // [rows, columns]; nullptr: not wanted
  std::uint8_t* transposed;  // [columns, rows]; nullptr: not wanted
  float* column_sums = nullptr;

  TELENS_DEVICE TileCast cast() const {
    return {rows, columns, scale, amax, codes, transposed, column_sums};
  }
};

struct TransposeShared {
  TransposeTile tile;
  float sums[kRowGroups][kTransposeTile];  // of each thread's rows
  BlockMaximum maximum;
};

namespace detail {

// The sums of the thread's rows, from the first to the last of them. Rows beyond the matrix are
// zeros.
template <typename Input>
TELENS_DEVICE void leave_sums(
    const Pack<typename Input::Bits, kColumnsOfThread> (&x)[kPasses][kRowsOfThread], int thread,
    TransposeShared& shared) {
  TELENS_UNROLL
  for (int j = 0; j < kColumnsOfThread; ++j) {
    float sum = 0;
    TELENS_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      TELENS_UNROLL
      for (int i = 0; i < kRowsOfThread; ++i) sum += widen<Input>(x[pass][i].values[j]);
    }
    shared.sums[thread / kThreadsAcross][thread % kThreadsAcross * kColumnsOfThread + j] = sum;
  }
}

TELENS_DEVICE float sum_of_column(int column, const TransposeShared& shared) {
  float sum = 0;
  for (int group = 0; group < kRowGroups; ++group) sum += shared.sums[group][column];
  return sum;
}

}  // namespace detail

// source.load(row, column): 8 elements of a row as bits of Input. encode(pack, scale, largest):
// their codes.
template <typename Input, typename Source, typename Encode, typename Thread>
TELENS_DEVICE void cast_tiles(const TileCast& cast, const Source& source, const Encode& encode,
                              const Thread& thread, TransposeShared& shared) {
  using namespace detail;
  using Bits = typename Input::Bits;
  const Scale scale = Scale::from(cast.scale != nullptr ? *cast.scale : 1.0F);
  const std::int64_t tiles_across = tiles_of(cast.columns, kTransposeTile);
  const std::int64_t tiles = tiles_across * tiles_of(cast.rows, kTransposeTile);
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
        if (row < cast.rows && column < cast.columns) x[pass][i] = source.load(row, column);
      }
    }
    TELENS_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      Pack<std::uint8_t, kColumnsOfThread> codes[kRowsOfThread];
      TELENS_UNROLL
      for (int i = 0; i < kRowsOfThread; ++i) {
        codes[i] = encode(x[pass][i], scale, largest);
        const std::int64_t row = row0 + pass * kRowsOfPass + first_row + i;
        if (cast.codes != nullptr && row < cast.rows && column < cast.columns) {
          store_pack(cast.codes + row * cast.columns + column, codes[i]);
        }
      }
      leave_columns(codes, pass * kRowsOfPass + first_row, first_column, shared.tile);
    }
    if (cast.column_sums != nullptr) leave_sums<Input>(x, thread.index(), shared);
    thread.sync();

    if (cast.transposed != nullptr) {
      store_columns(thread, shared.tile, row0, column0, cast.rows, cast.columns, cast.transposed);
    }
    if (cast.column_sums != nullptr && thread.index() < kTransposeTile &&
        column0 + thread.index() < cast.columns) {
      cast.column_sums[tile / tiles_across * cast.columns + column0 + thread.index()] =
          sum_of_column(thread.index(), shared);
    }
    thread.sync();  // before the next tile overwrites the columns
  }
  if (cast.amax != nullptr) update_amax<Input>(thread, largest, cast.amax, shared.maximum);
}

template <typename Input>
struct MatrixSource {
  const typename Input::Bits* x;
  std::int64_t columns;

  TELENS_DEVICE Pack<typename Input::Bits, kColumnsOfThread> load(std::int64_t row,
                                                                  std::int64_t column) const {
    return load_pack<kColumnsOfThread>(x + row * columns + column);
  }
};

template <typename Input, typename Output, typename Thread>
TELENS_DEVICE void quantize_transpose(const QuantizeTransposeArguments& arguments,
                                      const Thread& thread, TransposeShared& shared) {
  using Bits = typename Input::Bits;
  const MatrixSource<Input> source{static_cast<const Bits*>(arguments.x), arguments.columns};
  const auto encode = [](const auto& pack, const Scale& scale, std::uint32_t& largest) {
    return quantize_pack<Input, Output>(pack, scale, largest);
  };
  cast_tiles<Input>(arguments.cast(), source, encode, thread, shared);
}

}  // namespace telens::cuda
