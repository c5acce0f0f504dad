// Scales and codes of a block format as whatever decodes them on the CPU reads them: a scale for
// each element of a line in memory, a code a byte.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/formats/convert.h"
#include "core/formats/scaling_mode.h"
#include "core/kernels/cpu/grain.h"
#include "core/ops/block_quantize_checks.h"
#include "core/ops/quantize_checks.h"

namespace telens::kernels {

// Scales as FP32 values: a matrix, by strides.
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
  const auto* const from = dense.const_data_ptr<std::uint8_t>();
  auto* const to = values.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < dense.numel(); ++i) {
    to[i] = mode == ScalingMode::mxfp8 ? decode<E8M0>(from[i]) : decode<E4M3>(from[i]);
  }
  return values;
}

// The scales of the elements of one row in memory, of codes that lie row after row...
inline void scales_along_row(const Scales& scales, ScalingMode mode, std::int64_t row,
                             std::vector<float>& of_elements) {
  const auto size = static_cast<std::int64_t>(of_elements.size());
  const std::int64_t length = block_length(mode);
  for (std::int64_t begin = 0; begin < size; begin += length) {
    std::fill_n(of_elements.begin() + begin, std::min(length, size - begin),
                scales.at(row / block_height(mode), begin / length));
  }
}

// ... and of codes of which one column lies after the other.
inline void scales_along_column(const Scales& scales, ScalingMode mode, std::int64_t column,
                                std::vector<float>& of_elements) {
  const auto size = static_cast<std::int64_t>(of_elements.size());
  for (std::int64_t row = 0; row < size; ++row) {
    of_elements[row] = scales.at(row / block_height(mode), column / block_length(mode));
  }
}

// NVFP4's packed codes, one a byte, in the same order of memory.
inline at::Tensor unpack(const at::Tensor& packed) {
  const bool transposed = ops::is_transposed(packed);
  const at::Tensor dense = transposed ? packed.t() : packed.contiguous();
  const std::int64_t lines = dense.size(0);
  const std::int64_t length = dense.size(1);
  at::Tensor codes = transposed ? at::empty({2 * lines, length}, packed.options())
                                : at::empty({lines, 2 * length}, packed.options());
  // The codes of a byte are neighbours in memory, or one line apart.
  const std::int64_t step = transposed ? 1 : 2;
  const std::int64_t apart = transposed ? length : 1;
  const auto* const from = dense.const_data_ptr<std::uint8_t>();
  auto* const to = codes.mutable_data_ptr<std::uint8_t>();
  const std::int64_t grain = kGrain / std::max<std::int64_t>(1, 2 * length) + 1;
  at::parallel_for(0, lines, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t line = begin; line < end; ++line) {
      const std::uint8_t* const bytes = from + line * length;
      std::uint8_t* const pairs = to + line * 2 * length;
      for (std::int64_t i = 0; i < length; ++i) {
        pairs[i * step] = bytes[i] & 0xf;
        pairs[i * step + apart] = bytes[i] >> 4;
      }
    }
  });
  return transposed ? codes.t() : codes;
}

}  // namespace telens::kernels
