// The formulas of scales, of tensors and of blocks, for every device. No LibTorch.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "core/formats/convert.h"
#include "core/formats/host_device.h"

namespace telens {

// Returns the power of two at or below a positive finite x: 2^floor(log2(x)).
TELENS_HOST_DEVICE inline float power_of_two_below(float x) {
  int exponent = 0;
  std::frexp(x, &exponent);  // x = m * 2^exponent with 1/2 <= m < 1
  return std::ldexp(1.0F, exponent - 1);
}

// Current scaling, as in Transformer Engine's compute_scale_from_amax. `largest` replaces an
// infinite scale.
TELENS_HOST_DEVICE inline float current_scale(float amax, float fp8_max, float epsilon,
                                              bool power_of_two,
                                              float largest = std::numeric_limits<float>::max()) {
  if (amax < epsilon) {
    amax = epsilon;
  }
  if (!std::isfinite(amax) || amax == 0.0F) {
    return 1.0F;
  }
  const float quotient = fp8_max / amax;
  const float scale = std::isinf(quotient) ? largest : quotient;
  return power_of_two ? power_of_two_below(scale) : scale;
}

// Delayed scaling: returns the scale that replaces `old_scale`.
TELENS_HOST_DEVICE inline float delayed_scale(float amax, float old_scale, float fp8_max,
                                              int margin, bool power_of_two) {
  if (!std::isfinite(amax) || !(amax > 0.0F)) {
    return old_scale;
  }
  float scale = fp8_max / amax;
  if (std::isinf(scale)) {
    scale = std::numeric_limits<float>::max();
  }
  if (power_of_two) {
    scale = power_of_two_below(scale);
  }
  scale = std::ldexp(scale, -margin);
  return std::isinf(scale) ? std::numeric_limits<float>::max() : scale;
}

// The scale of a block, computed from its largest magnitude, and the factor by which its elements
// are multiplied before they are encoded.
//
// The arithmetic is Transformer Engine's, operation by operation, each rounded to FP32 (its
// common/cast and common/recipe/recipe_common.cuh).

// Whether a NaN is excluded from a block's largest magnitude or becomes the largest magnitude.
enum class NanInMaximum { left_out, wins };

// The stored scale of a block, and the factor by which the block's elements are multiplied.
template <typename ScaleCode>
struct BlockScale {
  ScaleCode stored;
  float factor;
};

// Returns the E8M0 code for a block with elements of Format. Rounded up, no element overflows.
// Rounded down, it is the scale of the OCP MX specification: 2^(floor(log2(amax)) - largest
// exponent).
template <typename Format>
TELENS_HOST_DEVICE constexpr std::uint8_t e8m0_scale(float amax, ScaleRounding rounding) {
  constexpr float kReciprocalOfMax = 1.0F / Format::kMax;
  constexpr float kReciprocalOfTopPower = power_of_two(-Format::kMaxExponent);
  const float quotient =
      amax * (rounding == ScaleRounding::floor ? kReciprocalOfTopPower : kReciprocalOfMax);
  return encode<E8M0>(quotient, Saturation::saturating, rounding);
}

// 1 / decode<E8M0>(code); exact.
TELENS_HOST_DEVICE constexpr float e8m0_factor(std::uint8_t code) {
  if (code == E8M0::kNanCode) return bits_as<float>(FP32::kNanCode);
  return power_of_two(E8M0::kBias - static_cast<int>(code));
}

// E4M3 scales of E2M1 blocks, with one FP32 scale for the tensor.
struct TwoLevelScaling {
  static constexpr NanInMaximum kNan = NanInMaximum::wins;  // it makes the block's scale NaN

  float tensor_factor;
  float tensor_scale;  // 1 / tensor_factor

  // amax: the tensor's largest number. The tensor is multiplied by 448 * 6 / amax, so that the
  // scale of its largest block is the largest value of E4M3, or by 1 if amax is zero or infinite.
  // largest_scale: replaces 448.
  static TELENS_HOST_DEVICE TwoLevelScaling of(float amax, float largest_scale = E4M3::kMax) {
    const float factor = factor_of_tensor(amax, largest_scale);
    return {factor, 1.0F / factor};
  }

  // A block's scale, amax / 6 in units of the tensor's scale, is the block's amax times this
  // factor.
  TELENS_HOST_DEVICE float block_factor() const {
    constexpr float kReciprocalOfMax = 1.0F / E2M1::kMax;
    return tensor_factor * kReciprocalOfMax;
  }

  // Returns the factor by which a block's elements are multiplied, given the code of the block's
  // scale.
  TELENS_HOST_DEVICE float get_factor(std::uint8_t block_scale) const {
    const float factor = 1.0F / (decode<E4M3>(block_scale) * tensor_scale);
    return factor > FP32::kMax ? FP32::kMax : factor;
  }

  TELENS_HOST_DEVICE BlockScale<std::uint8_t> get_scale(float amax) const {
    const std::uint8_t code = encode<E4M3>(amax * block_factor(), Saturation::saturating);
    return {code, get_factor(code)};
  }

 private:
  static TELENS_HOST_DEVICE float factor_of_tensor(float amax, float largest_scale) {
    const float factor = largest_scale * E2M1::kMax / amax;
    if (amax == 0.0F || factor == 0.0F) return 1.0F;
    return factor > FP32::kMax ? FP32::kMax : factor;
  }
};

// The elements that a block-scaled cast clips.

// The smallest FP32 value that rounds to more than the largest value of Format. E2M1 has neither
// infinity nor NaN, so for E2M1 it is the smallest value that would round to 8 if the format had an
// 8.
template <typename Format>
constexpr float first_clipped() {
  std::uint32_t first = 0;
  std::uint32_t last = FP32::kTopExponentCode;
  while (first < last) {
    const std::uint32_t middle = first + (last - first) / 2;
    if (detail::unbounded_code<Format>(middle) > Format::kMaxCode) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return bits_as<float>(first);
}
template <typename Format>
inline constexpr float kFirstClipped = first_clipped<Format>();

// Not larger than any clipped value, however the scale's reciprocal and the products round.
template <typename Format>
inline constexpr float kNearlyClipped = kFirstClipped<Format>*(1 - 0x1p-20F);

// Returns true if rounding moves an element beyond its block's range. scale: 0 or more, or NaN.
template <typename Format>
TELENS_HOST_DEVICE constexpr bool is_clipped(float magnitude, float scale) {
  if (!(magnitude >= scale * Format::kMax)) return false;  // also if the scale is NaN
  const float inverse = 1.0F / scale;
  const float factor = inverse > FP32::kMax ? FP32::kMax : inverse;
  return magnitude * factor >= kFirstClipped<Format>;
}

}  // namespace telens
