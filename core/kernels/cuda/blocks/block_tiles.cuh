// Device code. Tiling of a matrix for the kernels that quantize and dequantize in blocks.
//
// A thread block processes tiles of 128 columns. A thread has 8 columns of a few rows.
#pragma once

#include "core/kernels/cuda/words.cuh"

namespace telens::cuda {

struct BlockMatrix {
  const void* x;  // [rows, columns], row-major
  std::int64_t rows;
  std::int64_t columns;
};

// Destination of the codes and scales for an orientation; pointers are nullptr if it is not
// requested. Codes have the element order of the input, [rows, columns]. Packed codes are [rows,
// columns / 2] rowwise and [rows / 2, columns] columnwise, rounded up. A line is a row or,
// columnwise, a column. The scale of block `block` of a line is at block * block_stride + line *
// line_stride.
template <typename ScaleCode>
struct BlockOutput {
  std::uint8_t* codes;
  ScaleCode* scales;
  std::int64_t block_stride;
  std::int64_t line_stride;

  TELENS_DEVICE ScaleCode& scale(std::int64_t block, std::int64_t line) const {
    return scales[block * block_stride + line * line_stride];
  }
};

template <typename ScaleCode>
struct BlockOutputs {
  BlockOutput<ScaleCode> rowwise;
  BlockOutput<ScaleCode> columnwise;
};

inline constexpr int kTileColumns = 128;
inline constexpr int kColumnsOfThread = 8;
inline constexpr int kThreadsAcross = kTileColumns / kColumnsOfThread;  // 16
inline constexpr int kRowGroups = kThreads / kThreadsAcross;            // 16
inline constexpr int kRowGroupsOfWarp = kWarp / kThreadsAcross;         // 2

template <typename T>
using Eight = Pack<T, kColumnsOfThread>;
template <typename T>
using EightWords = Words<T, kColumnsOfThread>;

// Tile shape for a block size: a block that runs down the columns occupies whole warps.
template <int block>
struct TileShape {
  static constexpr int kRowsOfThread = block <= 64 ? 4 : 8;
  static constexpr int kRows = kRowGroups * kRowsOfThread;  // 64 or 128
  static constexpr int kWarpsOfBlock = block / (kRowGroupsOfWarp * kRowsOfThread);
  static constexpr int kBlocksDown = kRows / block;
  static constexpr int kBlocksAcross = kTileColumns / block;
  static constexpr int kThreadsOfBlock = block / kColumnsOfThread;  // along a row
  static_assert(kRows % block == 0 && kWarpsOfBlock > 0 && kBlocksAcross > 0);
};

// A thread's first row and column in a tile.
template <int rows_of_thread, typename Thread>
TELENS_DEVICE int get_row(const Thread& thread) {
  return thread.index() / kThreadsAcross * rows_of_thread;
}
template <typename Thread>
TELENS_DEVICE int get_column(const Thread& thread) {
  return thread.index() % kThreadsAcross * kColumnsOfThread;
}

constexpr std::int64_t count_tiles(std::int64_t size, std::int64_t tile) {
  return (size + tile - 1) / tile;
}

// The number of tiles, which bounds the useful grid size.
constexpr std::int64_t tiles_of_matrix(std::int64_t rows, std::int64_t columns, int tile_rows) {
  return count_tiles(rows, tile_rows) * count_tiles(columns, kTileColumns);
}

// tile / across. A matrix in memory has less than 2^32 tiles, and a 64-bit division is a function
// call.
TELENS_DEVICE std::int64_t quotient_of_tiles(std::int64_t tile, std::int64_t across) {
  return static_cast<std::uint32_t>(tile) / static_cast<std::uint32_t>(across);
}

// Calls visit(row, column) with the first element of every tile of this thread block.
template <int tile_rows, typename Thread, typename Visit>
TELENS_DEVICE void for_each_tile(const Thread& thread, std::int64_t rows, std::int64_t columns,
                                 const Visit& visit) {
  const std::int64_t across = count_tiles(columns, kTileColumns);
  const std::int64_t tiles = across * count_tiles(rows, tile_rows);
  for (std::int64_t tile = thread.block(); tile < tiles; tile += thread.blocks()) {
    const std::int64_t band = quotient_of_tiles(tile, across);
    visit(band * tile_rows, (tile - band * across) * kTileColumns);
  }
}

// Loads neighbors in a row of `columns` elements, with zeros beyond its end. `whole`: the row
// consists of whole packs.
template <int size, bool whole, typename T>
TELENS_DEVICE Pack<T, size> load_within(const T* row, std::int64_t column, std::int64_t columns) {
  Pack<T, size> values{};
  if constexpr (whole) {
    if (column < columns) values = load_pack<size>(row + column);
  } else {
    TELENS_UNROLL
    for (int i = 0; i < size; ++i) {
      if (column + i < columns) values.values[i] = row[column + i];
    }
  }
  return values;
}

template <bool whole, int size, typename T>
TELENS_DEVICE void store_within(T* row, std::int64_t column, std::int64_t columns,
                                const Words<T, size>& values) {
  if constexpr (whole) {
    if (column < columns) store_words(row + column, values);
  } else {
    TELENS_UNROLL
    for (int i = 0; i < size; ++i) {
      if (column + i < columns) row[column + i] = static_cast<T>(values.at(i));
    }
  }
}

template <bool whole, int size, typename T>
TELENS_DEVICE void store_within(T* row, std::int64_t column, std::int64_t columns,
                                const Pack<T, size>& values) {
  if constexpr (whole) {
    if (column < columns) store_pack(row + column, values);
  } else {
    TELENS_UNROLL
    for (int i = 0; i < size; ++i) {
      if (column + i < columns) row[column + i] = values.values[i];
    }
  }
}

// Loads a thread's elements, with zeros beyond the matrix.
template <typename Bits, bool whole, int rows>
TELENS_DEVICE void load_rows(const BlockMatrix& matrix, std::int64_t row, std::int64_t column,
                             EightWords<Bits> (&x)[rows]) {
  const Bits* const first = static_cast<const Bits*>(matrix.x) + row * matrix.columns;
  if constexpr (whole) {
    // Loads have no individual conditions, so that all are in flight before the first is used.
    if (row + rows <= matrix.rows && column < matrix.columns) {
      TELENS_UNROLL
      for (int i = 0; i < rows; ++i) {
        x[i] = load_words<kColumnsOfThread>(first + column + i * matrix.columns);
      }
      return;
    }
  }
  TELENS_UNROLL
  for (int i = 0; i < rows; ++i) {
    x[i] = {};
    if (row + i < matrix.rows) {
      x[i] = get_words(
          load_within<kColumnsOfThread, whole>(first + i * matrix.columns, column, matrix.columns));
    }
  }
}

}  // namespace telens::cuda
