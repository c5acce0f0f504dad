// A matrix in a block format, decoded line by line in memory order.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kernels/cpu/quantize/block_scales.h"
#include "core/kernels/cpu/quantize/fp8_ranges.h"
#include "core/ops/block_quantize.h"

namespace telens::kernels {

// Returns the matrix in row-major order, or in column-major order if transposed.
inline at::Tensor in_order(const at::Tensor& matrix, bool transposed) {
  return transposed ? matrix.t().contiguous().t() : matrix.contiguous();
}

// Buffers for decoding a line; reusable.
struct DecodedLine {
  explicit DecodedLine(std::int64_t length)
      : scales(static_cast<std::size_t>(length)), values(static_cast<std::size_t>(length)) {}

  std::vector<float> scales;  // one scale per element
  std::vector<float> values;
  std::int64_t row_of_scales = -1;  // in memory: the lines with the same scales
};

// Packed codes are unpacked to one per byte.
class BlockLines {
 public:
  // Lines are rows, or columns if transposed. length: valid elements of a line. A row of packed
  // codes with an odd number of columns has one more.
  BlockLines(const ops::BlockCodes& given, FormatId element, ScalingMode mode, bool transposed,
             std::int64_t length)
      : codes_(in_order(is_packed_fp4(mode) ? unpack(given.codes) : given.codes, transposed)),
        scales_(get_scales(given, mode)),
        element_(element),
        mode_(mode),
        transposed_(transposed),
        length_(length) {}

  const Scales& scales() const { return scales_; }
  std::int64_t length() const { return length_; }

  void decode(std::int64_t line, DecodedLine& out) const {
    find_scales(line, out);
    const std::int64_t code_stride = codes_.size(transposed_ ? 0 : 1);
    const auto* const codes = codes_.const_data_ptr<std::uint8_t>();
    dequantize_range_by_scales(element_, codes + line * code_stride,
                               static_cast<std::size_t>(length_), out.scales.data(), FormatId::fp32,
                               out.values.data());
  }

 private:
  void find_scales(std::int64_t line, DecodedLine& out) const {
    const std::int64_t row = line / (transposed_ ? block_length(mode_) : block_height(mode_));
    if (out.row_of_scales == row) return;
    out.row_of_scales = row;
    if (transposed_) {
      scales_along_column(scales_, mode_, line, out.scales);
    } else {
      scales_along_row(scales_, mode_, line, out.scales);
    }
  }

  static Scales get_scales(const ops::BlockCodes& given, ScalingMode mode) {
    const at::Tensor of_blocks = decode_scales(given.scale_inv, mode);
    return Scales(given.tensor_scale.defined() ? of_blocks.mul(given.tensor_scale.view({-1, 1}))
                                               : of_blocks);
  }

  at::Tensor codes_;
  Scales scales_;
  FormatId element_;
  ScalingMode mode_;
  bool transposed_;
  std::int64_t length_;
};

}  // namespace telens::kernels
