// The elements that a block-scaled cast clips. For every device. No LibTorch.
#pragma once

#include <cstdint>

#include "core/formats/convert.h"
#include "core/formats/host_device.h"

namespace telens {

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
