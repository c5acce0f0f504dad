// Codes with a scale a block, decoded by tiles: device code.
#pragma once

#include "core/formats/scheme.h"
#include "core/kernels/cuda/quantize/block_tiles.cuh"
#include "core/kernels/cuda/quantize/dequantize.cuh"

namespace telens::cuda {

// How codes share bytes: one a byte, or neighbors of a row or of a column two a byte, the first of
// them in the lower half.
enum class CodePairs { none, along_row, down_columns };

// A matrix as it lies in memory, row after row: of codes that are a transposed view a row here is
// one of their columns.
struct CodedMatrix {
  const std::uint8_t* codes;
  std::int64_t rows;     // counted in values
  std::int64_t columns;  // counted in values, even where codes share bytes along a row
  CodePairs pairs;
  // Element [row, column] has the scale at
  //   (row >> row_shift) * row_stride + (column >> column_shift) * column_stride
  const void* scales;
  int row_shift;
  int column_shift;
  std::int64_t row_stride;
  std::int64_t column_stride;
  const float* tensor_scale;  // multiplies the others; nullptr: none
  // From that of one row, and of one column, to the next; both 0: there is one for all.
  std::int64_t tensor_row_stride;
  std::int64_t tensor_column_stride;

  TELENS_DEVICE bool has_scales_of_lines() const {
    return tensor_row_stride != 0 || tensor_column_stride != 0;
  }
};

// As stored: E8M0, E4M3 or FP32.
template <typename ScaleFormat>
struct StoredScales {
  using Bits = typename ScaleFormat::Bits;
  const CodedMatrix& matrix;
  bool has_tensor_scale;
  float tensor_scale;

  explicit TELENS_DEVICE StoredScales(const CodedMatrix& of)
      : matrix(of),
        has_tensor_scale(of.tensor_scale != nullptr),
        tensor_scale(has_tensor_scale ? *of.tensor_scale : 1.0F) {}

  TELENS_DEVICE float at(std::int64_t row, std::int64_t column) const {
    const std::int64_t place = (row >> matrix.row_shift) * matrix.row_stride +
                               (column >> matrix.column_shift) * matrix.column_stride;
    const float of_block = decode<ScaleFormat>(static_cast<const Bits*>(matrix.scales)[place]);
    if (!has_tensor_scale) return of_block;
    if (!matrix.has_scales_of_lines()) return of_block * tensor_scale;
    const std::int64_t line = row * matrix.tensor_row_stride + column * matrix.tensor_column_stride;
    return of_block * matrix.tensor_scale[line];
  }
  // True if eight neighbors have the same one.
  TELENS_DEVICE bool one_for_eight() const { return 1 << matrix.column_shift >= kColumnsOfThread; }
  // The scales of eight neighbors.
  TELENS_DEVICE Eight<float> of_eight(std::int64_t row, std::int64_t column) const {
    Eight<float> factors{};
    if (one_for_eight()) {
      const float factor = at(row, column);
      TELENS_UNROLL
      for (float& each : factors.values) each = factor;
    } else {
      TELENS_UNROLL
      for (int i = 0; i < kColumnsOfThread; ++i) {
        if (column + i < matrix.columns) factors.values[i] = at(row, column + i);
      }
    }
    return factors;
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
inline constexpr int kDecodeRows = 4;
inline constexpr int kDecodeTileRows = kRowGroups * kDecodeRows;
// Blocks of threads that a multiprocessor is to hold: 32 values, their codes and scales.
inline constexpr int kDecodeResident = blocks_with(80);

// The codes of eight columns of a few rows of bytes.
template <CodePairs pairs, int rows = kDecodeRows>
struct CodesOfThread {
  // Codes that a thread loads of a row of bytes, and how many rows of values a row of bytes has.
  static constexpr int kBytes =
      pairs == CodePairs::along_row ? kColumnsOfThread / 2 : kColumnsOfThread;
  static constexpr int kLinesOfByte = pairs == CodePairs::down_columns ? 2 : 1;
  static_assert(16 % (rows * kLinesOfByte) == 0, "the shortest block has 16 elements");

  static TELENS_DEVICE std::int64_t rows_of_bytes(const CodedMatrix& matrix) {
    return matrix.rows / kLinesOfByte;
  }

  Pack<std::uint8_t, kBytes> bytes[rows];

  // Zeros beyond the matrix. `whole`: its columns are a multiple of 8, its codes aligned to 8.
  template <bool whole>
  TELENS_DEVICE void load(const CodedMatrix& matrix, std::int64_t row_of_bytes,
                          std::int64_t column) {
    const std::int64_t width = matrix.columns * kBytes / kColumnsOfThread;
    TELENS_UNROLL
    for (int i = 0; i < rows; ++i) {
      bytes[i] = {};
      if (row_of_bytes + i < rows_of_bytes(matrix)) {
        bytes[i] = load_within<kBytes, whole>(matrix.codes + (row_of_bytes + i) * width,
                                              column * kBytes / kColumnsOfThread, width);
      }
    }
  }

  // One a byte, of one of the lines of values that a row of bytes has.
  TELENS_DEVICE Eight<std::uint8_t> line(int row, int line) const {
    Eight<std::uint8_t> codes;
    TELENS_UNROLL
    for (int i = 0; i < kColumnsOfThread; ++i) {
      if constexpr (pairs == CodePairs::along_row) {
        codes.values[i] = bytes[row].values[i / 2] >> (i % 2 * 4) & 0xf;
      } else if constexpr (pairs == CodePairs::down_columns) {
        codes.values[i] = bytes[row].values[i] >> (line * 4) & 0xf;
      } else {
        codes.values[i] = bytes[row].values[i];
      }
    }
    return codes;
  }
};

}  // namespace telens::cuda
