// The scales of blocks in the order in which cuBLASLt reads them (its documentation: "1D Block
// Scaling Factors Layout", "Scaling factors layouts"): device code.
#pragma once

#include "core/kernels/cuda/packs.cuh"

namespace telens::cuda {

// A matrix [lines, blocks of K] of any strides.
template <typename Scale>
struct ScaleMatrix {
  const Scale* scales;
  std::int64_t lines;
  std::int64_t blocks;
  std::int64_t line_stride;
  std::int64_t block_stride;

  // Zero beyond the matrix.
  TELENS_DEVICE Scale at(std::int64_t line, std::int64_t block) const {
    const bool inside = line < lines && block < blocks;
    return inside ? scales[line * line_stride + block * block_stride] : Scale{0};
  }
};

// Scales of one byte (MXFP8, NVFP4) come in tiles of 128 lines x 4 blocks, 512 bytes each, one row
// of tiles after the other. In a tile the four blocks of a line are neighbours; lines 0, 32, 64 and
// 96 come first, then 1, 33, 65 and 97, and so on. Zeros fill the tiles.
inline constexpr int kScaleTileLines = 128;
inline constexpr int kScaleTileBlocks = 4;
inline constexpr int kScaleTileBytes = kScaleTileLines * kScaleTileBlocks;

struct TileScalesArguments {
  ScaleMatrix<std::uint8_t> matrix;
  std::uint8_t* tiles;  // [lines / 128, blocks / 4, 512], both rounded up; aligned to 4 bytes
};

constexpr std::int64_t scale_tiles_of(std::int64_t lines, std::int64_t blocks) {
  return (lines + kScaleTileLines - 1) / kScaleTileLines *
         ((blocks + kScaleTileBlocks - 1) / kScaleTileBlocks);
}

// A thread writes the four scales of one line.
template <typename Thread>
TELENS_DEVICE void tile_scales(const TileScalesArguments& arguments, const Thread& thread) {
  constexpr int kGroups = kScaleTileLines / 32;  // lines that are neighbours in a tile
  const ScaleMatrix<std::uint8_t>& matrix = arguments.matrix;
  const std::int64_t across = (matrix.blocks + kScaleTileBlocks - 1) / kScaleTileBlocks;
  const std::int64_t words = scale_tiles_of(matrix.lines, matrix.blocks) * kScaleTileLines;
  for (std::int64_t word = thread.block() * kThreads + thread.index(); word < words;
       word += thread.blocks() * kThreads) {
    const std::int64_t tile = word / kScaleTileLines;
    const auto place = static_cast<int>(word % kScaleTileLines);
    const std::int64_t line =
        tile / across * kScaleTileLines + place % kGroups * 32 + place / kGroups;
    const std::int64_t block = tile % across * kScaleTileBlocks;
    Pack<std::uint8_t, kScaleTileBlocks> scales;
    TELENS_UNROLL
    for (int i = 0; i < kScaleTileBlocks; ++i) scales.values[i] = matrix.at(line, block + i);
    store_pack(arguments.tiles + word * kScaleTileBlocks, scales);
  }
}

// FP32 scales (128-blocks) one row after the other, each filled with zeros to `padded` elements.
// 128x128 blocks: lines of squares, padded to a multiple of 4. 1x128 blocks: the transposed matrix,
// whose rows run along the lines.
inline constexpr std::int64_t kSquareScalesMultiple = 4;

struct PadScalesArguments {
  ScaleMatrix<float> matrix;
  std::int64_t padded;  // at least `blocks`
  float* out;           // [lines, padded]
};

template <typename Thread>
TELENS_DEVICE void pad_scales(const PadScalesArguments& arguments, const Thread& thread) {
  const std::int64_t size = arguments.matrix.lines * arguments.padded;
  for (std::int64_t i = thread.block() * kThreads + thread.index(); i < size;
       i += thread.blocks() * kThreads) {
    arguments.out[i] = arguments.matrix.at(i / arguments.padded, i % arguments.padded);
  }
}

}  // namespace telens::cuda
