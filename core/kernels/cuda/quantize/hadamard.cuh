// Device code. The random Hadamard transform of groups of 16 rows of a matrix.
#pragma once

#include "core/kernels/cuda/conversions.cuh"
#include "core/kernels/cuda/packs.cuh"

namespace telens::cuda {

inline constexpr int kHadamardRows = 16;

struct HadamardArguments {
  const void* x;  // [rows, columns], rows a multiple of 16
  void* y;
  std::int64_t rows;
  std::int64_t columns;
  std::uint32_t signs;  // bit i: row i of sixteen is negated
  bool inverse;
};

// Sums and differences of rows 1, 2, 4 and 8 apart, then a multiplication by 1/4. The definition
// requires FP32 additions in this order (core/kernels/cpu/quantize/hadamard.cpp).
template <int width>
TELENS_DEVICE void transform_sixteen(Pack<float, width> (&rows)[kHadamardRows]) {
  TELENS_UNROLL
  for (int distance = 1; distance < kHadamardRows; distance *= 2) {
    TELENS_UNROLL
    for (int i = 0; i < kHadamardRows; ++i) {
      if ((i & distance) != 0) continue;
      TELENS_UNROLL
      for (int c = 0; c < width; ++c) {
        const float sum = rows[i].values[c] + rows[i + distance].values[c];
        const float difference = rows[i].values[c] - rows[i + distance].values[c];
        rows[i].values[c] = sum;
        rows[i + distance].values[c] = difference;
      }
    }
  }
  TELENS_UNROLL
  for (Pack<float, width>& row : rows) {
    TELENS_UNROLL
    for (float& value : row.values) value *= 0.25F;  // 1 / sqrt(16)
  }
}

template <int width>
TELENS_DEVICE void flip_signs(Pack<float, width> (&rows)[kHadamardRows], std::uint32_t signs) {
  TELENS_UNROLL
  for (int i = 0; i < kHadamardRows; ++i) {
    const bool flips = (signs >> i & 1U) != 0;
    TELENS_UNROLL
    for (float& value : rows[i].values) value = flips ? -value : value;
  }
}

// A thread processes `width` columns of sixteen rows at a time. If width > 1, columns are a
// multiple of it. A NaN stays a NaN. Its bits differ from the CPU's, whose additions propagate
// other payloads.
template <typename Format, int width, typename Thread>
TELENS_DEVICE void hadamard_transform(const HadamardArguments& arguments, const Thread& thread) {
  using Bits = typename Format::Bits;
  const std::int64_t across = arguments.columns / width;
  const std::int64_t count = arguments.rows / kHadamardRows * across;
  for (std::int64_t i = thread.block() * kThreads + thread.index(); i < count;
       i += thread.blocks() * kThreads) {
    const std::int64_t first = i / across * kHadamardRows * arguments.columns + i % across * width;
    Pack<float, width> rows[kHadamardRows];
    TELENS_UNROLL
    for (int row = 0; row < kHadamardRows; ++row) {
      const auto x =
          load_pack<width>(static_cast<const Bits*>(arguments.x) + first + row * arguments.columns);
      TELENS_UNROLL
      for (int c = 0; c < width; ++c) rows[row].values[c] = widen<Format>(x.values[c]);
    }
    if (!arguments.inverse) flip_signs(rows, arguments.signs);
    transform_sixteen(rows);
    if (arguments.inverse) flip_signs(rows, arguments.signs);
    TELENS_UNROLL
    for (int row = 0; row < kHadamardRows; ++row) {
      Pack<Bits, width> y;
      TELENS_UNROLL
      for (int c = 0; c < width; ++c) y.values[c] = narrow<Format>(rows[row].values[c]);
      store_pack(static_cast<Bits*>(arguments.y) + first + row * arguments.columns, y);
    }
  }
}

}  // namespace telens::cuda
