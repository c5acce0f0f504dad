// Stochastic rounding to E2M1: the expected result is the value.
// Header-only, constexpr, host and device. No LibTorch.
#pragma once

#include <cstdint>

#include "core/formats/convert.h"

namespace telens {

// Returns the code of a neighbor of `value`. The neighbor away from zero has a probability equal to
// the relative distance from the other neighbor, with 22 binary digits of `random` (32 uniform
// bits). Values beyond the range become the largest value, NaN becomes +6. Representable values
// never change.
TELENS_HOST_DEVICE constexpr std::uint8_t encode_e2m1_stochastically(float value,
                                                                     std::uint32_t random) {
  constexpr int kExtraBits = FP32::kMantissaBits - E2M1::kMantissaBits;  // 22
  const auto bits = bits_as<std::uint32_t>(value);
  const std::uint8_t sign = (bits & FP32::kSignMask) != 0 ? E2M1::kSignMask : 0;
  const std::uint32_t magnitude = bits & FP32::kMagnitudeMask;
  if (magnitude > FP32::kTopExponentCode) return E2M1::kNanCode;

  // Codes as numbers with 22 binary digits: the code below the value and the fraction toward the
  // next code.
  std::uint32_t code = 0;
  if (magnitude >= bits_as<std::uint32_t>(E2M1::kMax)) {
    return static_cast<std::uint8_t>(sign | E2M1::kMaxCode);
  }
  if (magnitude >= bits_as<std::uint32_t>(E2M1::kSmallestNormal)) {
    constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(FP32::kBias - E2M1::kBias)
                                      << FP32::kMantissaBits;
    code = magnitude - kRebias;
  } else {
    // One code per 0.5. The product is exact; parts below 2^-22 of a code are dropped.
    code = static_cast<std::uint32_t>(bits_as<float>(magnitude) * power_of_two(kExtraBits + 1));
  }
  const std::uint32_t chance = random >> (32 - kExtraBits);
  return static_cast<std::uint8_t>(sign | ((code + chance) >> kExtraBits));
}

static_assert(encode_e2m1_stochastically(1.25F, 0x7fffffff) == 2);   // 1
static_assert(encode_e2m1_stochastically(1.25F, 0x80000000) == 3);   // 1.5: half of the cases
static_assert(encode_e2m1_stochastically(-5.0F, 0x80000000) == 15);  // -6
static_assert(encode_e2m1_stochastically(0.125F, 0xbfffffff) == 0);
static_assert(encode_e2m1_stochastically(0.125F, 0xc0000000) == 1);  // 0.5: a quarter of the cases
static_assert(encode_e2m1_stochastically(4.0F, 0xffffffff) == 6);

}  // namespace telens
