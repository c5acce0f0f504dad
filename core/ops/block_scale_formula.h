// From the largest magnitude of a block to its scale, and to the factor that its elements are
// multiplied by before they are encoded. For every device. No LibTorch.
//
// The arithmetic is Transformer Engine's, operation by operation, each rounded to FP32 (its
// common/cast/mxfp8, common/cast/nvfp4/core_nvfp4.cuh and common/recipe/recipe_common.cuh).
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

// MXFP8: the E8M0 code of a block with elements of Format. Rounded up, no element overflows.
// Rounded down it is the scale of the OCP MX specification: 2^(floor(log2(amax)) - largest
// exponent).
template <typename Format>
TELENS_HOST_DEVICE constexpr std::uint8_t mxfp8_scale(float amax, ScaleRounding rounding) {
  constexpr float kReciprocalOfMax = 1.0F / Format::kMax;
  constexpr float kReciprocalOfTopPower = power_of_two(-Format::kMaxExponent);
  const float quotient =
      amax * (rounding == ScaleRounding::floor ? kReciprocalOfTopPower : kReciprocalOfMax);
  return encode<E8M0>(quotient, Saturation::saturating, rounding);
}

// 1 / decode<E8M0>(code); exact.
TELENS_HOST_DEVICE constexpr float mxfp8_factor(std::uint8_t code) {
  if (code == E8M0::kNanCode) return bits_as<float>(FP32::kNanCode);
  return power_of_two(E8M0::kBias - static_cast<int>(code));
}

// NVFP4: what a tensor is multiplied by so that the scale of its largest block is the largest of
// E4M3: 448 * 6 / amax; 1 for an amax of zero or infinity. Its inverse is the tensor's scale.
// largest_scale: another one in 448's place.
TELENS_HOST_DEVICE inline float nvfp4_tensor_factor(float amax, float largest_scale = E4M3::kMax) {
  const float factor = largest_scale * E2M1::kMax / amax;
  if (amax == 0.0F || factor == 0.0F) return 1.0F;
  return factor > FP32::kMax ? FP32::kMax : factor;
}

// NVFP4: the E4M3 code of a block's scale, amax / 6 in units of the tensor's scale, is that of the
// block's amax times this factor.
TELENS_HOST_DEVICE inline float nvfp4_block_factor(float tensor_factor) {
  constexpr float kReciprocalOfMax = 1.0F / E2M1::kMax;
  return tensor_factor * kReciprocalOfMax;
}

TELENS_HOST_DEVICE inline std::uint8_t nvfp4_block_scale(float amax, float tensor_factor) {
  return encode<E4M3>(amax * nvfp4_block_factor(tensor_factor), Saturation::saturating);
}

// NVFP4: what a block's elements are multiplied by.
TELENS_HOST_DEVICE inline float nvfp4_factor(std::uint8_t block_scale, float tensor_scale) {
  const float factor = 1.0F / (decode<E4M3>(block_scale) * tensor_scale);
  return factor > FP32::kMax ? FP32::kMax : factor;
}

}  // namespace telens
