// Scales and codes of a block format, expanded for the CPU's decoders: one scale per element of a
// line in memory, one code per byte.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/formats/convert.h"
#include "core/formats/scheme.h"
#include "core/kernels/cpu/grain.h"
#include "core/ops/block_quantize.h"
#include "core/ops/quantize.h"

namespace telens::kernels {

// Scales as FP32 values: a matrix, with strides.
struct Scales {
  at::Tensor values;
  const float* data;
  std::int64_t row_stride;
  std::int64_t column_stride;

  explicit Scales(at::Tensor decoded)
      : values(std::move(decoded)),
        data(values.const_data_ptr<float>()),
        row_stride(values.stride(0)),
        column_stride(values.stride(1)) {}

  float at(std::int64_t row, std::int64_t column) const {
    return data[row * row_stride + column * column_stride];
  }
};

inline at::Tensor decode_scales(const at::Tensor& scale_inv, ScalingMode mode) {
  if (scale_inv.scalar_type() == at::kFloat) return scale_inv;
  const at::Tensor dense =
      scale_inv.is_non_overlapping_and_dense() ? scale_inv : scale_inv.contiguous();
  at::Tensor values = ops::empty_values(dense, at::kFloat);
  std::array<float, 256> of_codes;
  for (std::size_t i = 0; i < of_codes.size(); ++i) {
    const auto code = static_cast<std::uint8_t>(i);
    of_codes[i] =
        scheme(mode).scale_format == FormatId::e8m0 ? decode<E8M0>(code) : decode<E4M3>(code);
  }
  const auto* const from = dense.const_data_ptr<std::uint8_t>();
  auto* const to = values.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < dense.numel(); ++i) to[i] = of_codes[from[i]];
  return values;
}

// Expands a row's scales to one per element, for codes stored row by row. kLength: elements per
// block; a compile-time constant makes a block a few stores.
template <std::int64_t kLength>
void repeat_along_row(const Scales& scales, std::int64_t row, std::vector<float>& of_elements) {
  const auto size = static_cast<std::int64_t>(of_elements.size());
  const std::int64_t whole = size / kLength;
  const float* const of_blocks = scales.data + row * scales.row_stride;
  float* to = of_elements.data();
  for (std::int64_t block = 0; block < whole; ++block, to += kLength) {
    const float scale = of_blocks[block * scales.column_stride];
    for (std::int64_t i = 0; i < kLength; ++i) to[i] = scale;
  }
  if (const std::int64_t rest = size - whole * kLength; rest > 0) {
    std::fill_n(to, rest, of_blocks[whole * scales.column_stride]);
  }
}

inline void scales_along_row(const Scales& scales, ScalingMode mode, std::int64_t row,
                             std::vector<float>& of_elements) {
  switch (block_length(mode)) {
    case 16:
      return repeat_along_row<16>(scales, row, of_elements);
    case 32:
      return repeat_along_row<32>(scales, row, of_elements);
    default:
      return repeat_along_row<128>(scales, row / block_height(mode), of_elements);
  }
}

// Expands a column's scales to one per element, for codes stored column by column.
inline void scales_along_column(const Scales& scales, ScalingMode mode, std::int64_t column,
                                std::vector<float>& of_elements) {
  const auto size = static_cast<std::int64_t>(of_elements.size());
  const std::int64_t height = block_height(mode);
  const float* const of_blocks = scales.data + column / block_length(mode) * scales.column_stride;
  for (std::int64_t row = 0; row < size; row += height) {
    std::fill_n(of_elements.begin() + row, std::min(height, size - row),
                of_blocks[row / height * scales.row_stride]);
  }
}

// kStep: distance between consecutive codes in `lower` and in `upper`. No memory overlaps, except
// that the two outputs may interleave.
template <std::int64_t kStep>
void unpack_line(const std::uint8_t* __restrict bytes, std::int64_t length, std::uint8_t* lower,
                 std::uint8_t* upper) {
  for (std::int64_t i = 0; i < length; ++i) {
    const std::uint8_t pair = bytes[i];
    lower[i * kStep] = pair & 0xf;
    upper[i * kStep] = pair >> 4;
  }
}

// Unpacks packed codes to one per byte, in the same memory order.
inline at::Tensor unpack(const at::Tensor& packed) {
  const bool transposed = ops::is_transposed(packed);
  const at::Tensor dense = transposed ? packed.t() : packed.contiguous();
  const std::int64_t lines = dense.size(0);
  const std::int64_t length = dense.size(1);
  at::Tensor codes = transposed ? at::empty({2 * lines, length}, packed.options())
                                : at::empty({lines, 2 * length}, packed.options());
  const auto* const from = dense.const_data_ptr<std::uint8_t>();
  auto* const to = codes.mutable_data_ptr<std::uint8_t>();
  const std::int64_t grain = kGrain / std::max<std::int64_t>(1, 2 * length) + 1;
  at::parallel_for(0, lines, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t line = begin; line < end; ++line) {
      const std::uint8_t* const bytes = from + line * length;
      std::uint8_t* const pairs = to + line * 2 * length;
      // The two codes of a byte are one line apart in memory if transposed, or neighbors.
      if (transposed) {
        unpack_line<1>(bytes, length, pairs, pairs + length);
      } else {
        unpack_line<2>(bytes, length, pairs, pairs + 1);
      }
    }
  });
  return transposed ? codes.t() : codes;
}

}  // namespace telens::kernels
