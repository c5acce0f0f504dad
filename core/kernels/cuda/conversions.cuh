// Conversions between formats with GPU instructions, or on the host with core/formats. Both give
// the same bits. The PTX ISA manual, "cvt", specifies the instructions' results.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/formats/convert.h"
#include "core/kernels/cuda/thread.cuh"

// Ada (8.9) is the first architecture with instructions for FP8. Older cards use core/formats.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define TELENS_FP8_INSTRUCTIONS
#endif

namespace telens::cuda {

// Returns the FP32 value of a BF16, FP16 or FP32 code. Exact; a NaN stays a NaN.
template <SignedFormat Format>
TELENS_DEVICE float widen(typename Format::Bits code) {
  if constexpr (Format::kId == FormatId::fp32) {
    return bits_as<float>(code);
  } else if constexpr (Format::kId == FormatId::bf16) {
    return bits_as<float>(static_cast<std::uint32_t>(code) << 16);
  } else {
#if defined(__CUDA_ARCH__)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(code));
    return value;
#else
    return decode<Format>(code);
#endif
  }
}

// Returns the BF16, FP16 or FP32 code nearest to the value, ties to even. Values beyond the range
// become infinity. A NaN becomes the NaN of core/formats with the value's sign; the instruction
// makes all NaNs 0x7fff.
template <SignedFormat Format>
TELENS_DEVICE typename Format::Bits narrow(float value) {
  if constexpr (Format::kId == FormatId::fp32) {
    const auto bits = bits_as<std::uint32_t>(value);
    return value == value ? bits : (bits & FP32::kSignMask) | FP32::kNanCode;
  } else {
#if defined(__CUDA_ARCH__)
    std::uint16_t code;
    if constexpr (Format::kId == FormatId::bf16) {
      asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(code) : "f"(value));
    } else {
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(value));
    }
    const auto sign = static_cast<std::uint16_t>((bits_as<std::uint32_t>(value) >> 16) & 0x8000U);
    return value == value ? code : static_cast<std::uint16_t>(Format::kNanCode | sign);
#else
    return encode<Format>(value, Saturation::non_saturating);
#endif
  }
}

// Returns the BF16 or FP16 codes of two values, the first in the lower half. The sign of a NaN is
// unspecified.
template <SignedFormat Format>
TELENS_DEVICE std::uint32_t narrow_pair(float first, float second) {
#if defined(__CUDA_ARCH__)
  std::uint32_t pair;  // the instruction's first operand becomes the upper half
  if constexpr (Format::kId == FormatId::bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  }
  return pair;
#else
  return narrow<Format>(first) | static_cast<std::uint32_t>(narrow<Format>(second)) << 16;
#endif
}

// Returns the saturated codes of two magnitudes, the first in the low byte. A value must be NaN or
// not negative. A NaN of either sign becomes 0x7f.
template <SignedFormat Format>
TELENS_DEVICE std::uint32_t encode_magnitudes(float first, float second) {
  static_assert(Format::kWidth == 8 && Format::kNanCode == 0x7f);
#if defined(TELENS_FP8_INSTRUCTIONS)
  std::uint16_t pair;  // the instruction's first operand becomes the upper byte
  if constexpr (Format::kId == FormatId::e4m3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
  }
  return pair;
#else
  const auto code = [](float value) -> std::uint32_t {
    return encode<Format>(value, Saturation::saturating) & Format::kMagnitudeMask;
  };
  return code(first) | code(second) << 8;
#endif
}

// Returns the saturated E2M1 code of a magnitude. A NaN becomes the largest value.
TELENS_DEVICE std::uint32_t encode_e2m1_magnitude(float value) {
  // Codes count steps. A step is a half below 1 and doubles with each power of two from 2 on.
  // Adding 2^22 times the value's power of two rounds the value to a multiple of its step. The bits
  // of the sum are the bits of the added number plus the number of steps.
  constexpr std::uint32_t kExponent = FP32::kTopExponentCode;
  constexpr std::uint32_t kTo2To22 = 22U << FP32::kMantissaBits;
  constexpr int kToSteps = FP32::kMantissaBits - E2M1::kMantissaBits;  // two steps per power of two
  constexpr std::uint32_t kStepsBefore = (bits_as<std::uint32_t>(1.0F) + kTo2To22) >> kToSteps;
  const float bounded = value < E2M1::kMax ? value : E2M1::kMax;  // a NaN becomes the bound
  const std::uint32_t added =
      (bits_as<std::uint32_t>(fmaxf(bounded, E2M1::kSmallestNormal)) & kExponent) + kTo2To22;
  const std::uint32_t sum = bits_as<std::uint32_t>(bounded + bits_as<float>(added));
  return sum - added + (added >> kToSteps) - kStepsBefore;
}

struct FloatPair {
  float first;
  float second;
};

// Returns the FP32 values of two E4M3 or E5M2 codes, the first in the low byte. Exact; a NaN stays
// a NaN.
template <SignedFormat Format>
TELENS_DEVICE FloatPair decode_pair(std::uint16_t codes) {
#if defined(TELENS_FP8_INSTRUCTIONS)
  std::uint32_t halves;  // every FP8 value is an FP16 value
  if constexpr (Format::kId == FormatId::e4m3) {
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
  } else {
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(codes));
  }
  return {widen<FP16>(static_cast<std::uint16_t>(halves)),
          widen<FP16>(static_cast<std::uint16_t>(halves >> 16))};
#else
  return {decode<Format>(static_cast<std::uint8_t>(codes)),
          decode<Format>(static_cast<std::uint8_t>(codes >> 8))};
#endif
}

// Returns the values of two E2M1 magnitudes, one per byte.
TELENS_DEVICE FloatPair decode_e2m1_magnitudes(std::uint16_t codes) {
#if defined(__CUDA_ARCH__)
  // Shifted to the top bits below FP16's sign, the codes are the values under FP16's bias.
  constexpr int kShift = FP16::kMantissaBits - E2M1::kMantissaBits;
  // The power of two that converts the bias, in both halves.
  constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(2 * FP16::kBias - E2M1::kBias)
                                    << FP16::kMantissaBits;
  static_assert(kRebias == 0x7400U);
  const std::uint32_t small = __byte_perm(codes, 0, 0x4140) << kShift;
  std::uint32_t halves;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(halves) : "r"(small), "r"(kRebias | kRebias << 16));
  return {widen<FP16>(static_cast<std::uint16_t>(halves)),
          widen<FP16>(static_cast<std::uint16_t>(halves >> 16))};
#else
  return {decode<E2M1>(static_cast<std::uint8_t>(codes & 0xffU)),
          decode<E2M1>(static_cast<std::uint8_t>(codes >> 8))};
#endif
}

// Minimum and maximum of two 16-bit lanes per word. Hopper has instructions for them (VIMNMX.U16x2,
// VIMNMX.S16x2).
TELENS_DEVICE std::uint32_t max_u16x2(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__)
  return __vmaxu2(a, b);
#else
  const auto larger = [](std::uint32_t x, std::uint32_t y) { return x > y ? x : y; };
  return larger(a & 0xffffU, b & 0xffffU) | larger(a >> 16, b >> 16) << 16;
#endif
}

TELENS_DEVICE std::uint32_t min_u16x2(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__)
  return __vminu2(a, b);
#else
  return ~max_u16x2(~a, ~b);
#endif
}

TELENS_DEVICE std::uint32_t max_s16x2(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__)
  return __vmaxs2(a, b);
#else
  constexpr std::uint32_t kSigns = 0x80008000U;  // flipping them maps signed to unsigned order
  return max_u16x2(a ^ kSigns, b ^ kSigns) ^ kSigns;
#endif
}

TELENS_DEVICE std::uint32_t min_s16x2(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__)
  return __vmins2(a, b);
#else
  return ~max_s16x2(~a, ~b);
#endif
}

// Selects bytes of the pair (low: byte 0 of a or b) by the four hexadecimal digits of `selector`.
// The last digit selects the lowest byte. Digits 0 to 3 are the bytes of a, 4 to 7 the bytes of b.
TELENS_DEVICE std::uint32_t permute_bytes(std::uint32_t a, std::uint32_t b,
                                          std::uint32_t selector) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(a, b, selector);
#else
  const std::uint64_t both = static_cast<std::uint64_t>(b) << 32 | a;
  std::uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t from = (selector >> (4 * i)) & 7U;
    result |= static_cast<std::uint32_t>(both >> (8 * from) & 0xffU) << (8 * i);
  }
  return result;
#endif
}

}  // namespace telens::cuda

#undef TELENS_FP8_INSTRUCTIONS
