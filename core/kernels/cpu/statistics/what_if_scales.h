// From the largest magnitudes of blocks to their scales, many at a time: those of the quantizers of
// core/ops/block_quantize.h with default options.
#pragma once

#include <array>
#include <cstdint>
#include <variant>
#include <vector>

#include "core/kernels/cpu/quantize/block_scalings.h"

namespace telens::kernels {

// Scales of consecutive blocks; to be used for many lines.
struct BlockScales {
  std::vector<float> factors;  // elements are multiplied by them before they are encoded
  std::vector<float> scales;   // and after: scale_inv
  std::vector<std::uint8_t> codes;

  void resize(std::size_t size) {
    factors.resize(size);
    scales.resize(size);
    codes.resize(size);
  }
};

// NVFP4's scales have 127 values and NaN: a table of them.
class Nvfp4Scales {
 public:
  static constexpr NanInMaximum kNan = NanInMaximum::wins;

  // amax: of the tensor, its largest number.
  explicit Nvfp4Scales(float amax)
      : tensor_factor_(nvfp4_tensor_factor(amax)), tensor_scale_(1.0F / tensor_factor_) {
    for (std::size_t code = 0; code < kCodes; ++code) {
      const auto of_block = static_cast<std::uint8_t>(code);
      scales_[code] = decode<E4M3>(of_block) * tensor_scale_;
      factors_[code] = nvfp4_factor(of_block, tensor_scale_);
    }
  }

  void of(const float* maxima, std::size_t size, BlockScales& out) const {
    quantize_range(FormatId::fp32, maxima, size, nvfp4_block_factor(tensor_factor_), FormatId::e4m3,
                   out.codes.data());
    for (std::size_t i = 0; i < size; ++i) {
      out.factors[i] = factors_[out.codes[i]];
      out.scales[i] = scales_[out.codes[i]];
    }
  }

 private:
  static constexpr std::size_t kCodes = E4M3::kNanCode + 1;

  float tensor_factor_;
  float tensor_scale_;
  std::array<float, kCodes> factors_;
  std::array<float, kCodes> scales_;
};

class Mxfp8Scales {
 public:
  static constexpr NanInMaximum kNan = Mxfp8Scaling::kNan;

  explicit Mxfp8Scales(FormatId element) : scaling_{element, ScaleRounding::up} {}

  void of(const float* maxima, std::size_t size, BlockScales& out) const {
    for (std::size_t i = 0; i < size; ++i) {
      const auto [code, factor] = scaling_.scale_of(maxima[i]);
      out.factors[i] = factor;
      out.scales[i] = decode<E8M0>(code);
    }
  }

 private:
  Mxfp8Scaling scaling_;
};

class Fp8BlockScales {
 public:
  static constexpr NanInMaximum kNan = Fp8BlockScaling::kNan;

  Fp8BlockScales(FormatId element, FormatId input)
      : scaling_(Fp8BlockScaling::of(element, input, /*power_of_2_scales=*/true,
                                     /*amax_epsilon=*/0.0F)) {}

  void of(const float* maxima, std::size_t size, BlockScales& out) const {
    for (std::size_t i = 0; i < size; ++i) {
      const auto [scale_inv, factor] = scaling_.scale_of(maxima[i]);
      out.factors[i] = factor;
      out.scales[i] = scale_inv;
    }
  }

 private:
  Fp8BlockScaling scaling_;
};

using WhatIfScales = std::variant<Mxfp8Scales, Fp8BlockScales, Nvfp4Scales>;

// The scales of a cast from `input` to `element`; amax: the tensor's largest number, which packed
// FP4 needs.
inline WhatIfScales what_if_scales(ScalingMode mode, FormatId element, FormatId input, float amax) {
  switch (mode) {
    case ScalingMode::mxfp8:
      return Mxfp8Scales(element);
    case ScalingMode::nvfp4:
      return Nvfp4Scales(amax);
    default:
      return Fp8BlockScales(element, input);
  }
}

}  // namespace telens::kernels
