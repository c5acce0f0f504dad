// Floats as bits. Header-only, constexpr, host and device. No LibTorch.
#pragma once

#include <cstdint>

#include "core/formats/host_device.h"

namespace telens {

// std::bit_cast is not a device function; its builtin is.
template <typename To, typename From>
TELENS_HOST_DEVICE constexpr To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

// 2^exponent, for -149 <= exponent <= 127 (below -126 the result is a FP32 subnormal).
TELENS_HOST_DEVICE constexpr float power_of_two(int exponent) {
  const std::uint32_t bits = exponent >= -126 ? static_cast<std::uint32_t>(exponent + 127) << 23
                                              : std::uint32_t{1} << (exponent + 149);
  return bits_as<float>(bits);
}

}  // namespace telens
