// Codes with a scale a block -> BF16, FP16 or FP32: device code.
#pragma once

#include "core/formats/scaling_mode.h"
#include "core/kernels/cuda/block_tiles.cuh"
#include "core/kernels/cuda/dequantize.cuh"

namespace telens::cuda {

// How codes share bytes: one a byte, or neighbours of a row or of a column two a byte, the first of
// them in the lower half.
enum class CodePairs { none, along_row, down_columns };

// Matrices as they lie in memory, row after row: of codes that are a transposed view a row here is
// one of their columns.
struct BlockDequantizeArguments {
  const std::uint8_t* codes;
  std::int64_t rows;     // of values
  std::int64_t columns;  // of values, even where codes share bytes along a row
  CodePairs pairs;
  // Element [row, column] has the scale at
  //   (row >> row_shift) * row_stride + (column >> column_shift) * column_stride
  const void* scales;
  int row_shift;
  int column_shift;
  std::int64_t row_stride;
  std::int64_t column_stride;
  const float* tensor_scale;  // multiplies the others; nullptr: none
  void* values;               // [rows, columns]
};

// As stored: E8M0, E4M3 or FP32.
template <typename ScaleFormat>
struct BlockScales {
  using Bits = typename ScaleFormat::Bits;
  const BlockDequantizeArguments& arguments;
  bool has_tensor_scale;
  float tensor_scale;

  explicit TELENS_DEVICE BlockScales(const BlockDequantizeArguments& of)
      : arguments(of),
        has_tensor_scale(of.tensor_scale != nullptr),
        tensor_scale(has_tensor_scale ? *of.tensor_scale : 1.0F) {}

  TELENS_DEVICE float at(std::int64_t row, std::int64_t column) const {
    const std::int64_t place = (row >> arguments.row_shift) * arguments.row_stride +
                               (column >> arguments.column_shift) * arguments.column_stride;
    return value(static_cast<const Bits*>(arguments.scales)[place]);
  }
  // Of eight neighbours.
  TELENS_DEVICE Eight<float> of_eight(std::int64_t row, std::int64_t column) const {
    Eight<float> factors{};
    if (1 << arguments.column_shift >= kColumnsOfThread) {
      const float factor = at(row, column);
      TELENS_UNROLL
      for (float& each : factors.values) each = factor;
    } else {
      TELENS_UNROLL
      for (int i = 0; i < kColumnsOfThread; ++i) {
        if (column + i < arguments.columns) factors.values[i] = at(row, column + i);
      }
    }
    return factors;
  }

 private:
  TELENS_DEVICE float value(Bits code) const {
    const float of_block = decode<ScaleFormat>(code);
    return has_tensor_scale ? of_block * tensor_scale : of_block;
  }
};

// The values of eight codes, one a byte.
template <typename Input, typename Output>
TELENS_DEVICE Eight<typename Output::Bits> decode_eight(const Eight<std::uint8_t>& codes,
                                                        const Eight<float>& factors) {
  constexpr int kToByte = 8 - Input::kWidth;  // from a code's sign to bit 7
  Eight<typename Output::Bits> values;
  TELENS_UNROLL
  for (int i = 0; i < kColumnsOfThread; i += 2) {
    const std::uint32_t first = codes.values[i];
    const std::uint32_t second = codes.values[i + 1];
    FloatPair pair;
    if constexpr (Input::kWidth == 8) {
      pair = decode_pair<Input>(static_cast<std::uint16_t>((first | second << 8) & 0x7f7fU));
    } else {
      pair = {decode<Input>(first & Input::kMagnitudeMask),
              decode<Input>(second & Input::kMagnitudeMask)};
    }
    values.values[i] = scaled_value<Output>(pair.first, factors.values[i], first << kToByte);
    values.values[i + 1] =
        scaled_value<Output>(pair.second, factors.values[i + 1], second << kToByte);
  }
  return values;
}

// Rows of codes that a thread reads in a tile, all before it decodes the first.
inline constexpr int kDequantizeRows = 4;
inline constexpr int kDequantizeTileRows = kRowGroups * kDequantizeRows;

// `whole`: columns are a multiple of 8; codes and values are aligned to packs of 8 and 16 bytes.
template <typename Input, typename ScaleFormat, typename Output, CodePairs pairs, bool whole,
          typename Thread>
TELENS_DEVICE void dequantize_blocks(const BlockDequantizeArguments& arguments,
                                     const Thread& thread) {
  using Bits = typename Output::Bits;
  // Codes that a thread loads of a row of bytes, and how many rows of values a row of bytes has.
  constexpr int kBytes = pairs == CodePairs::along_row ? kColumnsOfThread / 2 : kColumnsOfThread;
  constexpr int kLinesOfByte = pairs == CodePairs::down_columns ? 2 : 1;
  static_assert(block_length(ScalingMode::nvfp4) % (kDequantizeRows * kLinesOfByte) == 0);
  const BlockScales<ScaleFormat> scales(arguments);
  const std::int64_t byte_rows = arguments.rows / kLinesOfByte;
  const std::int64_t bytes_of_row = arguments.columns * kBytes / kColumnsOfThread;

  const auto half = [](const Pack<std::uint8_t, kBytes>& bytes, int line) {
    Eight<std::uint8_t> codes;
    TELENS_UNROLL
    for (int i = 0; i < kColumnsOfThread; ++i) {
      if constexpr (pairs == CodePairs::along_row) {
        codes.values[i] = bytes.values[i / 2] >> (i % 2 * 4) & 0xf;
      } else if constexpr (pairs == CodePairs::down_columns) {
        codes.values[i] = bytes.values[i] >> (line * 4) & 0xf;
      } else {
        codes.values[i] = bytes.values[i];
      }
    }
    return codes;
  };

  for_each_tile<kDequantizeTileRows>(
      thread, byte_rows, arguments.columns, [&](std::int64_t tile_row, std::int64_t tile_column) {
        const std::int64_t row0 = tile_row + row_of<kDequantizeRows>(thread);
        const std::int64_t column = tile_column + column_of(thread);
        if (column >= arguments.columns) return;
        Pack<std::uint8_t, kBytes> bytes[kDequantizeRows] = {};
        TELENS_UNROLL
        for (int i = 0; i < kDequantizeRows; ++i) {
          if (row0 + i < byte_rows) {
            bytes[i] = load_within<kBytes, whole>(arguments.codes + (row0 + i) * bytes_of_row,
                                                  column * kBytes / kColumnsOfThread, bytes_of_row);
          }
        }
        Eight<float> factors;
        TELENS_UNROLL
        for (int i = 0; i < kDequantizeRows; ++i) {
          if (row0 + i >= byte_rows) continue;
          const std::int64_t row = (row0 + i) * kLinesOfByte;
          // Rows that share scales at all do so by sixteens, which hold all rows of a thread.
          if (i == 0 || arguments.row_shift == 0) factors = scales.of_eight(row, column);
          TELENS_UNROLL
          for (int line = 0; line < kLinesOfByte; ++line) {
            store_within<whole>(
                static_cast<Bits*>(arguments.values) + (row + line) * arguments.columns, column,
                arguments.columns, decode_eight<Input, Output>(half(bytes[i], line), factors));
          }
        }
      });
}

}  // namespace telens::cuda
