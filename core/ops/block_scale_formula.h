// Computes the scale of a block from its largest magnitude, and the factor by which its elements
// are multiplied before they are encoded. For every device. No LibTorch.
//
// The arithmetic is Transformer Engine's, operation by operation, each rounded to FP32 (its
// common/cast and common/recipe/recipe_common.cuh).
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "core/formats/convert.h"
#include "core/formats/host_device.h"

namespace telens {

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

}  // namespace telens
