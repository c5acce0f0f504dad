// Device code. Block scales in the order in which cuBLASLt reads them (its documentation: "1D Block
// Scaling Factors Layout", "Scaling factors layouts").
#pragma once

#include "core/formats/bits.h"
#include "core/formats/formats.h"
#include "core/kernels/cuda/packs.cuh"

namespace telens::cuda {

// A matrix [lines, blocks of K] with any strides.
template <typename Scale>
struct ScaleMatrix {
  const Scale* scales;
  std::int64_t lines;
  std::int64_t blocks;
  std::int64_t line_stride;
  std::int64_t block_stride;

  // Returns zero beyond the matrix.
  TELENS_DEVICE Scale at(std::int64_t line, std::int64_t block) const {
    const bool inside = line < lines && block < blocks;
    return inside ? scales[line * line_stride + block * block_stride] : Scale{0};
  }
};

// One-byte scales are stored in tiles of 128 lines x 4 blocks, 512 bytes each, with the tiles in
// row-major order. In a tile the four blocks of a line are contiguous. Lines 0, 32, 64 and 96 come
// first, then 1, 33, 65 and 97, and so on. Tiles are padded with zeros.
inline constexpr int kScaleTileLines = 128;
inline constexpr int kScaleTileBlocks = 4;
inline constexpr int kScaleTileBytes = kScaleTileLines * kScaleTileBlocks;

struct TileScalesArguments {
  ScaleMatrix<std::uint8_t> matrix;
  std::uint8_t* tiles;  // [lines / 128, blocks / 4, 512], both rounded up; aligned to 4 bytes
};

constexpr std::int64_t count_scale_tiles(std::int64_t lines, std::int64_t blocks) {
  return (lines + kScaleTileLines - 1) / kScaleTileLines *
         ((blocks + kScaleTileBlocks - 1) / kScaleTileBlocks);
}

// Calls visit(line, block, word) for each group of four scales of one line, blocks `block` to block
// + 3. The group is contiguous in memory, at tiles + word * kScaleTileBlocks.
template <typename Thread, typename Visit>
TELENS_DEVICE void for_each_tile_line(std::int64_t lines, std::int64_t blocks, const Thread& thread,
                                      const Visit& visit) {
  constexpr int kGroups = kScaleTileLines / 32;  // lines that are neighbors in a tile
  const std::int64_t across = (blocks + kScaleTileBlocks - 1) / kScaleTileBlocks;
  const std::int64_t words = count_scale_tiles(lines, blocks) * kScaleTileLines;
  for (std::int64_t word = thread.block() * kThreads + thread.index(); word < words;
       word += thread.blocks() * kThreads) {
    const std::int64_t tile = word / kScaleTileLines;
    const auto place = static_cast<int>(word % kScaleTileLines);
    const std::int64_t line =
        tile / across * kScaleTileLines + place % kGroups * 32 + place / kGroups;
    visit(line, tile % across * kScaleTileBlocks, word);
  }
}

template <typename Thread>
TELENS_DEVICE void tile_scales(const TileScalesArguments& arguments, const Thread& thread) {
  const ScaleMatrix<std::uint8_t>& matrix = arguments.matrix;
  for_each_tile_line(matrix.lines, matrix.blocks, thread,
                     [&](std::int64_t line, std::int64_t block, std::int64_t word) {
                       Pack<std::uint8_t, kScaleTileBlocks> scales;
                       TELENS_UNROLL
                       for (int i = 0; i < kScaleTileBlocks; ++i)
                         scales.values[i] = matrix.at(line, block + i);
                       store_pack(arguments.tiles + word * kScaleTileBlocks, scales);
                     });
}

// Returns the E8M0 code of an FP32 power of two from 2^-127 to 2^127, from its bits. Returns NaN
// for all other values, to expose a caller whose scales are not the promised powers of two.
TELENS_DEVICE std::uint8_t e8m0_of_power_of_two(float scale) {
  constexpr std::uint32_t kMantissaMask = (1U << FP32::kMantissaBits) - 1;
  constexpr std::uint32_t kSmallest = 1U << (FP32::kMantissaBits - 1);  // 2^-127, a subnormal
  const auto bits = bits_as<std::uint32_t>(scale);
  if (bits == kSmallest) return 0;
  const std::uint32_t exponent = bits >> FP32::kMantissaBits;  // includes the sign bit above it
  const bool in_range = exponent >= 1 && exponent <= E8M0::kMaxCode;
  return in_range && (bits & kMantissaMask) == 0 ? static_cast<std::uint8_t>(exponent)
                                                 : E8M0::kNanCode;
}

// Expands the scales of 128-blocks, FP32 powers of two, to scales of blocks of 32, in tiles. Each
// scale is repeated for four blocks along K and, for a square, for all of its lines.
struct ExpandScalesArguments {
  ScaleMatrix<float> matrix;  // [lines / lines_of_a_scale, blocks / 4], both rounded up
  std::int64_t lines_of_a_scale;
  std::int64_t lines;   // lines of the operand
  std::int64_t blocks;  // blocks of 32 along K
  std::uint8_t* tiles;  // as in TileScalesArguments
};

template <typename Thread>
TELENS_DEVICE void expand_scales(const ExpandScalesArguments& arguments, const Thread& thread) {
  // A line of a tile is one 128-block.
  static_assert(kScaleTileBlocks * 32 == 128);
  for_each_tile_line(arguments.lines, arguments.blocks, thread,
                     [&](std::int64_t line, std::int64_t block, std::int64_t word) {
                       Pack<std::uint8_t, kScaleTileBlocks> scales{};
                       if (line < arguments.lines) {
                         const std::uint8_t code = e8m0_of_power_of_two(arguments.matrix.at(
                             line / arguments.lines_of_a_scale, block / kScaleTileBlocks));
                         TELENS_UNROLL
                         for (int i = 0; i < kScaleTileBlocks; ++i) {
                           if (block + i < arguments.blocks) scales.values[i] = code;
                         }
                       }
                       store_pack(arguments.tiles + word * kScaleTileBlocks, scales);
                     });
}

// FP32 scales (128-blocks), row-major, each row padded with zeros to `padded` elements. 128x128
// blocks: rows of squares, padded to a multiple of 4. 1x128 blocks: the transposed matrix, whose
// rows run along the lines.
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
