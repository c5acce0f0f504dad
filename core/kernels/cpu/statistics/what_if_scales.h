// Scales from block maxima, many at a time: the scales of the quantizers of
// core/ops/block_quantize.h with default options.
#pragma once

#include <array>
#include <cstdint>
#include <variant>
#include <vector>

#include "core/kernels/cpu/quantize/block_scalings.h"

namespace telens::kernels {

// Scales of consecutive blocks; reusable for many lines.
struct BlockScales {
  std::vector<float> factors;  // multiply the elements before encoding
  std::vector<float> scales;   // after encoding: scale_inv
  std::vector<std::uint8_t> codes;

  void resize(std::size_t size) {
    factors.resize(size);
    scales.resize(size);
    codes.resize(size);
  }
};

// E4M3 scales under a per-tensor scale have 127 values and NaN: a table of them.
class TwoLevelScales {
 public:
  static constexpr NanInMaximum kNan = TwoLevelScaling::kNan;

  // amax: the largest number of the tensor.
  explicit TwoLevelScales(float amax) : scaling_(TwoLevelScaling::of(amax)) {
    for (std::size_t code = 0; code < kCodes; ++code) {
      const auto of_block = static_cast<std::uint8_t>(code);
      scales_[code] = decode<E4M3>(of_block) * scaling_.tensor_scale;
      factors_[code] = scaling_.get_factor(of_block);
    }
  }

  void of(const float* maxima, std::size_t size, BlockScales& out) const {
    quantize_range(FormatId::fp32, maxima, size, scaling_.block_factor(), FormatId::e4m3,
                   out.codes.data());
    for (std::size_t i = 0; i < size; ++i) {
      out.factors[i] = factors_[out.codes[i]];
      out.scales[i] = scales_[out.codes[i]];
    }
  }

 private:
  static constexpr std::size_t kCodes = E4M3::kNanCode + 1;

  TwoLevelScaling scaling_;
  std::array<float, kCodes> factors_;
  std::array<float, kCodes> scales_;
};

class E8m0Scales {
 public:
  static constexpr NanInMaximum kNan = NanInMaximum::left_out;

  explicit E8m0Scales(FormatId element) : element_(element) {}

  void of(const float* maxima, std::size_t size, BlockScales& out) const {
    for (std::size_t i = 0; i < size; ++i) {
      const auto [code, factor] = get_e8m0_scale(element_, maxima[i], ScaleRounding::up);
      out.factors[i] = factor;
      out.scales[i] = decode<E8M0>(code);
    }
  }

 private:
  FormatId element_;
};

class Fp8BlockScales {
 public:
  static constexpr NanInMaximum kNan = Fp8BlockScaling::kNan;

  Fp8BlockScales(FormatId element, FormatId input)
      : scaling_(Fp8BlockScaling::of(element, input, /*power_of_2_scales=*/true,
                                     /*amax_epsilon=*/0.0F)) {}

  void of(const float* maxima, std::size_t size, BlockScales& out) const {
    for (std::size_t i = 0; i < size; ++i) {
      const auto [scale_inv, factor] = scaling_.get_scale(maxima[i]);
      out.factors[i] = factor;
      out.scales[i] = scale_inv;
    }
  }

 private:
  Fp8BlockScaling scaling_;
};

using WhatIfScales = std::variant<E8m0Scales, Fp8BlockScales, TwoLevelScales>;

// The scales of a cast from `input` to `element`. amax: the tensor's largest number, which packed
// FP4 needs.
inline WhatIfScales what_if_scales(ScalingMode mode, FormatId element, FormatId input, float amax) {
  switch (scheme(mode).scale_format) {
    case FormatId::e8m0:
      return E8m0Scales(element);
    case FormatId::e4m3:
      return TwoLevelScales(amax);
    default:
      return Fp8BlockScales(element, input);
  }
}

}  // namespace telens::kernels
