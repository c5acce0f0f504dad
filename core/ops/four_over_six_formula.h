// FP4 blocks whose largest magnitude becomes 4 or 6, whichever leaves the smaller error (Cook et
// al., "Four Over Six", arXiv:2512.02010). E2M1 has nothing between 4 and 6: scaled to 4, a block
// uses its codes for values near its largest element. For every device. No LibTorch.
//
// The arithmetic is Transformer Engine's, operation by operation, each rounded to FP32 (its
// quantize_4over6 kernel, without fast math).
#pragma once

#include <cstdint>

#include "core/formats/convert.h"
#include "core/formats/host_device.h"
#include "core/ops/scale_formula.h"

namespace telens {

struct FourOverSix {
  // The error of a block: the sum of its elements' squared errors, or of their magnitudes.
  bool squared_error = false;
  // The scale of a tensor's largest block if it is scaled to 6: 448, or 256, which leaves room for
  // the scale of 4, which is half as large again.
  float largest_scale = 256.0F;

  bool operator==(const FourOverSix&) const = default;
};

namespace four_over_six {

inline constexpr int kBlock = 16;  // elements of packed FP4 per scale

// The inputs that all blocks of a tensor share.
struct TensorScale {
  float amax;  // the largest magnitude that is not NaN
  TwoLevelScaling scaling;
  FourOverSix options;

  static TELENS_HOST_DEVICE TensorScale of(float amax, const FourOverSix& options) {
    return {amax, TwoLevelScaling::of(amax, options.largest_scale), options};
  }
};

// One of the two scales of a block.
struct Candidate {
  std::uint8_t code;  // E4M3
  float value;
  float factor;  // elements are multiplied by it

  // stretch: 1 for 6, 1.5 for 4.
  static TELENS_HOST_DEVICE Candidate of(float block_amax, float stretch,
                                         const TensorScale& tensor) {
    const float wanted = block_amax / E2M1::kMax * tensor.scaling.tensor_factor * stretch;
    // The sign of a NaN from infinity times zero depends on the processor.
    const auto code = static_cast<std::uint8_t>(encode<E4M3>(wanted, Saturation::saturating) &
                                                E4M3::kMagnitudeMask);
    return {code, decode<E4M3>(code), tensor.scaling.get_factor(code)};
  }
};

struct CandidatePair {
  Candidate four;
  Candidate six;

  static TELENS_HOST_DEVICE CandidatePair of(float block_amax, const TensorScale& tensor) {
    return {Candidate::of(block_amax, 1.5F, tensor), Candidate::of(block_amax, 1.0F, tensor)};
  }
};

// Up to sixteen elements in a row or a column, in the order of their index.
struct Line {
  std::int64_t first;
  std::int64_t stride;
  int count;
};

// A NaN wins: the block's scale becomes NaN.
template <typename Load>
TELENS_HOST_DEVICE float amax_of_line(const Load& load, const Line& line, float amax = 0.0F) {
  for (int i = 0; i < line.count; ++i) {
    const float x = load(line.first + i * line.stride);
    const float magnitude = x < 0.0F ? -x : x;
    amax = magnitude > amax || magnitude != magnitude ? magnitude : amax;
  }
  return amax;
}

struct EncodedLine {
  std::uint64_t codes = 0;  // four bits per element, the first in the lowest
  float error = 0.0F;
};

template <typename Load>
TELENS_HOST_DEVICE EncodedLine encode_line(const Load& load, const Line& line,
                                           const Candidate& candidate, const TensorScale& tensor) {
  const float divisor = E2M1::kMax * tensor.options.largest_scale;
  EncodedLine encoded;
  for (int i = 0; i < line.count; ++i) {
    const float x = load(line.first + i * line.stride);
    const std::uint8_t code = encode<E2M1>(x * candidate.factor, Saturation::saturating);
    encoded.codes |= static_cast<std::uint64_t>(code) << (4 * i);
    const float value = decode<E2M1>(code) * candidate.value * tensor.amax / divisor;
    const float difference = value - x;
    const float magnitude = difference < 0.0F ? -difference : difference;
    encoded.error += tensor.options.squared_error ? difference * difference : magnitude;
  }
  return encoded;
}

// Six wins a tie, and also wins if an error is NaN.
TELENS_HOST_DEVICE inline bool takes_four(float error_of_four, float error_of_six) {
  return error_of_four < error_of_six;
}

struct EncodedBlock {
  std::uint64_t codes;
  std::uint8_t scale;
};

template <typename Load>
TELENS_HOST_DEVICE EncodedBlock encode_block(const Load& load, const Line& line,
                                             const TensorScale& tensor) {
  const auto candidates = CandidatePair::of(amax_of_line(load, line), tensor);
  const EncodedLine four = encode_line(load, line, candidates.four, tensor);
  const EncodedLine six = encode_line(load, line, candidates.six, tensor);
  if (takes_four(four.error, six.error)) return {four.codes, candidates.four.code};
  return {six.codes, candidates.six.code};
}

// Up to 16x16 elements with one scale.
struct EncodedSquare {
  std::uint64_t rows[kBlock];
  std::uint8_t scale;
};

// Sums rows eight, four, two and one apart: the order in which a warp adds them.
TELENS_HOST_DEVICE inline float sum_of_rows(float (&errors)[kBlock]) {
  for (int distance = kBlock / 2; distance > 0; distance /= 2) {
    for (int i = 0; i < distance; ++i) errors[i] += errors[i + distance];
  }
  return errors[0];
}

// row: its first row. Each further row begins `columns` elements later. Missing rows have no error.
template <typename Load>
TELENS_HOST_DEVICE EncodedSquare encode_square(const Load& load, const Line& row, int rows,
                                               std::int64_t columns, const TensorScale& tensor) {
  float amax = 0.0F;
  for (int i = 0; i < rows; ++i) {
    amax = amax_of_line(load, {row.first + i * columns, 1, row.count}, amax);
  }
  const auto candidates = CandidatePair::of(amax, tensor);
  float errors[2][kBlock] = {};
  EncodedSquare square{{}, candidates.six.code};
  std::uint64_t rows_of_four[kBlock] = {};
  for (int i = 0; i < rows; ++i) {
    const Line line{row.first + i * columns, 1, row.count};
    const EncodedLine four = encode_line(load, line, candidates.four, tensor);
    const EncodedLine six = encode_line(load, line, candidates.six, tensor);
    rows_of_four[i] = four.codes;
    square.rows[i] = six.codes;
    errors[0][i] = four.error;
    errors[1][i] = six.error;
  }
  if (takes_four(sum_of_rows(errors[0]), sum_of_rows(errors[1]))) {
    for (int i = 0; i < rows; ++i) square.rows[i] = rows_of_four[i];
    square.scale = candidates.four.code;
  }
  return square;
}

// Blocks in memory: reads, encodes and stores the block with a given index.

// The memory of both orientations of a matrix [rows, columns], contiguous, in the layout of
// core/ops/block_quantize.h. codes is nullptr if the orientation is not requested.
struct Output {
  std::uint8_t* codes;
  std::uint8_t* scales;
};

// The inputs for the scales of lines, which are rows, or columns if blocks run down the columns.
struct LineScales {
  const float* amaxes;  // the largest magnitudes that are not NaN
  bool by_line;         // true if there is one per line, false if there is one for the tensor
  FourOverSix choice;

  TELENS_HOST_DEVICE TensorScale of(std::int64_t line) const {
    return TensorScale::of(amaxes[by_line ? line : 0], choice);
  }
  // Element i of the tensor's scales.
  TELENS_HOST_DEVICE float tensor_scale(std::int64_t i) const { return of(i).scaling.tensor_scale; }
};

struct Matrix {
  std::int64_t rows;
  std::int64_t columns;

  TELENS_HOST_DEVICE std::int64_t blocks_across() const { return (columns + kBlock - 1) / kBlock; }
  TELENS_HOST_DEVICE std::int64_t blocks_down() const { return (rows + kBlock - 1) / kBlock; }
  TELENS_HOST_DEVICE int rows_at(std::int64_t block) const { return count(rows, block); }
  TELENS_HOST_DEVICE int columns_at(std::int64_t block) const { return count(columns, block); }

 private:
  static TELENS_HOST_DEVICE int count(std::int64_t size, std::int64_t block) {
    const std::int64_t left = size - block * kBlock;
    return left < kBlock ? static_cast<int>(left) : kBlock;
  }
};

TELENS_HOST_DEVICE inline void store(std::uint8_t* bytes, std::int64_t stride, std::uint64_t codes,
                                     int count) {
  for (int i = 0; 2 * i < count; ++i) {
    bytes[i * stride] = static_cast<std::uint8_t>(codes >> (8 * i));
  }
}

TELENS_HOST_DEVICE inline void store_along_row(const Output& rowwise, const Matrix& matrix,
                                               std::int64_t row, std::int64_t block,
                                               const EncodedBlock& encoded) {
  const std::int64_t bytes_of_row = (matrix.columns + 1) / 2;
  store(rowwise.codes + row * bytes_of_row + block * (kBlock / 2), 1, encoded.codes,
        matrix.columns_at(block));
  rowwise.scales[row * matrix.blocks_across() + block] = encoded.scale;
}

// Quantizes block `index` of the rows' blocks, counted row by row.
template <typename Load>
TELENS_HOST_DEVICE void quantize_along_row(const Load& load, const Matrix& matrix,
                                           const LineScales& scales, const Output& rowwise,
                                           std::int64_t index) {
  const std::int64_t row = index / matrix.blocks_across();
  const std::int64_t block = index % matrix.blocks_across();
  const Line line{row * matrix.columns + block * kBlock, 1, matrix.columns_at(block)};
  store_along_row(rowwise, matrix, row, block, encode_block(load, line, scales.of(row)));
}

// Quantizes block `index` of the columns' blocks, counted along each band of sixteen rows.
template <typename Load>
TELENS_HOST_DEVICE void quantize_down_column(const Load& load, const Matrix& matrix,
                                             const LineScales& scales, const Output& columnwise,
                                             std::int64_t index) {
  const std::int64_t block = index / matrix.columns;
  const std::int64_t column = index % matrix.columns;
  const Line line{block * kBlock * matrix.columns + column, matrix.columns, matrix.rows_at(block)};
  const EncodedBlock encoded = encode_block(load, line, scales.of(column));
  store(columnwise.codes + block * (kBlock / 2) * matrix.columns + column, matrix.columns,
        encoded.codes, line.count);
  columnwise.scales[index] = encoded.scale;
}

// Quantizes square `index`, counted along each band of sixteen rows. Stores its scale once per row
// and once per column.
template <typename Load>
TELENS_HOST_DEVICE void quantize_square(const Load& load, const Matrix& matrix,
                                        const LineScales& scales, const Output& rowwise,
                                        const Output& columnwise, std::int64_t index) {
  const std::int64_t down = index / matrix.blocks_across();
  const std::int64_t across = index % matrix.blocks_across();
  const int rows = matrix.rows_at(down);
  const int columns = matrix.columns_at(across);
  const Line first{down * kBlock * matrix.columns + across * kBlock, 1, columns};
  const EncodedSquare square = encode_square(load, first, rows, matrix.columns, scales.of(0));
  if (rowwise.codes != nullptr) {
    for (int row = 0; row < rows; ++row) {
      store_along_row(rowwise, matrix, down * kBlock + row, across,
                      {square.rows[row], square.scale});
    }
  }
  if (columnwise.codes == nullptr) return;
  for (int column = 0; column < columns; ++column) {
    std::uint64_t codes = 0;
    for (int row = 0; row < rows; ++row) {
      codes |= (square.rows[row] >> (4 * column) & 0xfU) << (4 * row);
    }
    const std::int64_t x = across * kBlock + column;
    store(columnwise.codes + down * (kBlock / 2) * matrix.columns + x, matrix.columns, codes, rows);
    columnwise.scales[x * matrix.blocks_down() + down] = square.scale;
  }
}

}  // namespace four_over_six
}  // namespace telens
