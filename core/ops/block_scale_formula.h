// From the largest magnitude of a block to its scale, and to the factor that its elements are
// multiplied by before they are encoded. For every device. No LibTorch.
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

// A NaN is left out of a block's largest magnitude, or is it.
enum class NanInMaximum { left_out, wins };

// The scale of a block as it is stored, and what the block's elements are multiplied by.
template <typename ScaleCode>
struct BlockScale {
  ScaleCode stored;
  float factor;
};

// E8M0: the code of a block with elements of Format. Rounded up, no element overflows. Rounded down
// it is the scale of the OCP MX specification: 2^(floor(log2(amax)) - largest exponent).
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

// E4M3 scales of blocks of E2M1 under one FP32 scale of the tensor.
struct TwoLevelScaling {
  static constexpr NanInMaximum kNan = NanInMaximum::wins;  // it makes the block's scale a NaN

  float tensor_factor;
  float tensor_scale;  // its inverse

  // amax: of the tensor, its largest number. The tensor is multiplied by 448 * 6 / amax, so that
  // the scale of its largest block is the largest of E4M3; by 1 for an amax of zero or infinity.
  // largest_scale: another one in 448's place.
  static TELENS_HOST_DEVICE TwoLevelScaling of(float amax, float largest_scale = E4M3::kMax) {
    const float factor = factor_of_tensor(amax, largest_scale);
    return {factor, 1.0F / factor};
  }

  // A block's scale, amax / 6 in units of the tensor's scale, is that of its amax times this.
  TELENS_HOST_DEVICE float block_factor() const {
    constexpr float kReciprocalOfMax = 1.0F / E2M1::kMax;
    return tensor_factor * kReciprocalOfMax;
  }

  // From the code of a block's scale to what its elements are multiplied by.
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
