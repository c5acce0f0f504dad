// Device code. Decodes codes of a block format tile by tile.
#pragma once

#include "core/formats/scheme.h"
#include "core/kernels/cuda/blocks/block_tiles.cuh"
#include "core/kernels/cuda/conversions.cuh"

namespace telens::cuda {

// How codes share bytes: one per byte, or two per byte, neighbors in a row or in a column. The
// first of the two is in the lower half.
enum class CodePairs { none, along_row, down_columns };

// A row-major matrix in memory. For codes that are a transposed view, a row here is a column of the
// view.
struct CodedMatrix {
  const std::uint8_t* codes;
  std::int64_t rows;     // in values
  std::int64_t columns;  // in values, even if codes share bytes along a row
  CodePairs pairs;
  // Element [row, column] has the scale at
  //   (row >> row_shift) * row_stride + (column >> column_shift) * column_stride
  const void* scales;
  int row_shift;
  int column_shift;
  std::int64_t row_stride;
  std::int64_t column_stride;
  const float* tensor_scale;  // multiplies the block scales; nullptr if there is none
  // Strides of tensor_scale by row and by column. Both are 0 if one scale is shared by all.
  std::int64_t tensor_row_stride;
  std::int64_t tensor_column_stride;

  TELENS_DEVICE bool has_scales_of_lines() const {
    return tensor_row_stride != 0 || tensor_column_stride != 0;
  }
};

// Scales in their stored format: E8M0, E4M3 or FP32.
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
  // Returns true if eight neighbors share a scale.
  TELENS_DEVICE bool one_for_eight() const { return 1 << matrix.column_shift >= kColumnsOfThread; }
  // Returns the scales of eight neighbors.
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

namespace detail {

inline constexpr std::uint32_t kTopOfBytes = 0x80808080U;

// Decodes the magnitudes of codes i and i + 1; i is even.
template <typename Input>
TELENS_DEVICE FloatPair decode_magnitudes(const EightWords<std::uint8_t>& codes, int i) {
  constexpr std::uint32_t kInEveryByte = 0x01010101U * Input::kMagnitudeMask;
  const std::uint32_t magnitudes = codes.words[i / 4] & kInEveryByte;
  const auto pair = static_cast<std::uint16_t>(magnitudes >> (i % 4 * 8));
  if constexpr (Input::kWidth == 8) {
    return decode_pair<Input>(pair);
  } else {
    return decode_e2m1_magnitudes(pair);
  }
}

// Moves the signs from bit 7 of a word's bytes to the top of the words that hold its four elements.
template <typename Output>
TELENS_DEVICE std::uint32_t spread_signs(std::uint32_t signs, int word) {
  if constexpr (kLanes<Output> == 2) {
    return permute_bytes(signs, 0, word % 2 == 0 ? 0x1404 : 0x3424);
  } else {
    return signs << (24 - word % 4 * 8) & FP32::kSignMask;
  }
}

}  // namespace detail

// Decodes eight codes, one per byte, multiplies them by get_factor(i), and rounds to FP32 and then
// to Output. Factors are not negative. The result has the sign of the code, also if it is NaN.
template <typename Input, typename Output, typename FactorOf>
TELENS_DEVICE EightWords<typename Output::Bits> decode_eight(const EightWords<std::uint8_t>& codes,
                                                             const FactorOf& get_factor) {
  constexpr int kToByte = 8 - Input::kWidth;  // from a code's sign bit to bit 7
  float scaled[kColumnsOfThread];
  TELENS_UNROLL
  for (int i = 0; i < kColumnsOfThread; i += 2) {
    const FloatPair pair = detail::decode_magnitudes<Input>(codes, i);
    scaled[i] = pair.first * get_factor(i);
    scaled[i + 1] = pair.second * get_factor(i + 1);
  }
  auto values = narrow_all<Output>(scaled);
  TELENS_UNROLL
  for (int word = 0; word < values.kWords; ++word) {
    const std::uint32_t signs =
        codes.words[word * kLanes<Output> / 4] << kToByte & detail::kTopOfBytes;
    values.words[word] = (values.words[word] & in_every_lane<Output>(Output::kMagnitudeMask)) |
                         detail::spread_signs<Output>(signs, word);
  }
  return values;
}

template <typename Input, typename Output>
TELENS_DEVICE EightWords<typename Output::Bits> decode_eight(const EightWords<std::uint8_t>& codes,
                                                             const Eight<float>& factors) {
  return decode_eight<Input, Output>(codes, [&](int i) { return factors.values[i]; });
}

// Rows of codes that a thread reads in a tile; all of them are read before the first is decoded.
inline constexpr int kDecodeRows = 4;
inline constexpr int kDecodeTileRows = kRowGroups * kDecodeRows;
// Thread blocks per multiprocessor, for a register budget of 32 values, their codes and scales.
inline constexpr int kDecodeResident = blocks_with(80);

// The codes of eight columns of a few rows of bytes.
template <CodePairs pairs, int rows = kDecodeRows>
struct CodesOfThread {
  // Codes that a thread loads per row of bytes, and rows of values per row of bytes.
  static constexpr int kBytes =
      pairs == CodePairs::along_row ? kColumnsOfThread / 2 : kColumnsOfThread;
  static constexpr int kLinesOfByte = pairs == CodePairs::down_columns ? 2 : 1;
  static_assert(16 % (rows * kLinesOfByte) == 0, "the shortest block has 16 elements");

  static TELENS_DEVICE std::int64_t rows_of_bytes(const CodedMatrix& matrix) {
    return matrix.rows / kLinesOfByte;
  }

  Words<std::uint8_t, kBytes> bytes[rows];

  // Loads zeros beyond the matrix. `whole`: the columns are a multiple of 8 and codes are aligned
  // to 8.
  template <bool whole>
  TELENS_DEVICE void load(const CodedMatrix& matrix, std::int64_t row_of_bytes,
                          std::int64_t column) {
    const std::int64_t width = matrix.columns * kBytes / kColumnsOfThread;
    const std::int64_t byte = column * kBytes / kColumnsOfThread;
    const std::uint8_t* const first = matrix.codes + row_of_bytes * width;
    if constexpr (whole) {
      // Loads have no individual conditions, so that all are in flight before the first is used.
      if (row_of_bytes + rows <= rows_of_bytes(matrix) && byte < width) {
        TELENS_UNROLL
        for (int i = 0; i < rows; ++i) bytes[i] = load_words<kBytes>(first + byte + i * width);
        return;
      }
    }
    TELENS_UNROLL
    for (int i = 0; i < rows; ++i) {
      bytes[i] = {};
      if (row_of_bytes + i < rows_of_bytes(matrix)) {
        bytes[i] = get_words(load_within<kBytes, whole>(first + i * width, byte, width));
      }
    }
  }

  // Returns the codes, one per byte, of line `line` in a row of bytes.
  TELENS_DEVICE EightWords<std::uint8_t> line(int row, int line) const {
    constexpr std::uint32_t kLowerHalves = 0x0f0f0f0fU;
    const auto& words = bytes[row].words;
    if constexpr (pairs == CodePairs::along_row) {
      const std::uint32_t even = words[0] & kLowerHalves;
      const std::uint32_t odd = words[0] >> 4 & kLowerHalves;
      return {{permute_bytes(even, odd, 0x5140), permute_bytes(even, odd, 0x7362)}};
    } else if constexpr (pairs == CodePairs::down_columns) {
      return {{words[0] >> (line * 4) & kLowerHalves, words[1] >> (line * 4) & kLowerHalves}};
    } else {
      return bytes[row];
    }
  }
};

}  // namespace telens::cuda
