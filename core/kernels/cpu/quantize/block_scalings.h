// How each block format computes scales from block maxima and codes from elements: the Scaling
// parameter of core/kernels/cpu/quantize/block_tiles.h.
#pragma once

#include "core/formats/dispatch.h"
#include "core/kernels/cpu/quantize/block_tiles.h"
#include "core/kernels/cpu/quantize/fp8_ranges.h"
#include "core/ops/scale_formula.h"

namespace telens::kernels {

// An E8M0 scale for FP8 elements.
inline BlockScale<std::uint8_t> get_e8m0_scale(FormatId element, float amax,
                                               ScaleRounding rounding) {
  const std::uint8_t code = element == FormatId::e4m3 ? e8m0_scale<E4M3>(amax, rounding)
                                                      : e8m0_scale<E5M2>(amax, rounding);
  return {code, e8m0_factor(code)};
}

// MXFP8.
struct Mxfp8Scaling {
  using ScaleCode = std::uint8_t;
  static constexpr std::int64_t kBlock = block_length(ScalingMode::mxfp8);
  static constexpr NanInMaximum kNan = NanInMaximum::left_out;

  FormatId element;
  ScaleRounding rounding;

  BlockScale<ScaleCode> get_scale(float amax) const {
    return get_e8m0_scale(element, amax, rounding);
  }
  void encode(const Elements& x, const float* factors, std::uint8_t* codes) const {
    quantize_range_by_scales(x.format, x.data, x.size, factors, element, codes);
  }
};

// FP8 in 128-blocks.
struct Fp8BlockScaling {
  using ScaleCode = float;
  static constexpr std::int64_t kBlock = block_length(ScalingMode::block_1d);
  static constexpr NanInMaximum kNan = NanInMaximum::left_out;

  FormatId element;
  float fp8_max;
  float largest_scale;  // the largest value of x's dtype
  bool power_of_2_scales;
  float amax_epsilon;

  static Fp8BlockScaling of(FormatId element, FormatId input, bool power_of_2_scales,
                            float amax_epsilon) {
    constexpr auto kMax = []<typename Format>() { return Format::kMax; };
    return {element, dispatch_fp8_format(element, "quantize_fp8_blocks", kMax),
            dispatch_high_precision_format(input, "quantize_fp8_blocks", kMax), power_of_2_scales,
            amax_epsilon};
  }

  BlockScale<ScaleCode> get_scale(float amax) const {
    const float scale =
        current_scale(amax, fp8_max, amax_epsilon, power_of_2_scales, largest_scale);
    return {1.0F / scale, scale};
  }
  void encode(const Elements& x, const float* factors, std::uint8_t* codes) const {
    quantize_range_by_scales(x.format, x.data, x.size, factors, element, codes);
  }
};

// The largest finite magnitude, from which packed FP4 computes the per-tensor scale.
inline float largest_number(const ElementMatrix& x) {
  return at::parallel_reduce(
      0, x.rows * x.columns, kGrain, 0.0F,
      [&](std::int64_t begin, std::int64_t end, float so_far) {
        float largest = 0.0F;
        const auto size = static_cast<std::size_t>(end - begin);
        block_maxima(x.format, x.at(0, begin), size, size, NanInMaximum::left_out, &largest);
        return std::max(so_far, largest);
      },
      [](float a, float b) { return std::max(a, b); });
}

}  // namespace telens::kernels
