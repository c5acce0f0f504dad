// decode<Format>(code) and encode<Format>(value, saturation): the reference for every kernel, which
// must return the same bits. Header-only, constexpr, host and device. No LibTorch.
//
// All arithmetic is on integers, so neither a flush-to-zero mode nor a compiler flag changes a
// result.
#pragma once

#include <concepts>
#include <cstdint>

#include "core/formats/bits.h"
#include "core/formats/formats.h"

namespace telens {

// The result for a value that rounds beyond the largest finite value, including infinity.
enum class Saturation : std::uint8_t {
  saturating,      // the largest finite value of its sign
  non_saturating,  // infinity of its sign; NaN for E4M3 and E8M0; formats without both saturate
};

// Rounding of a value between two powers of two to a block scale.
enum class ScaleRounding : std::uint8_t {
  up,       // to the next power of two, so that no element overflows
  floor,    // to the power of two below (OCP MX specification)
  nearest,  // to the nearer one; the tie 1.5 * 2^n goes up
};

namespace detail {

constexpr int kFloatMantissaBits = FP32::kMantissaBits;
constexpr std::uint32_t kFloatHiddenBit = std::uint32_t{1} << kFloatMantissaBits;

// value / 2^shift, rounded to nearest, ties to even.
TELENS_HOST_DEVICE constexpr std::uint32_t shift_right_nearest_even(std::uint32_t value,
                                                                    int shift) {
  if (shift == 0) return value;
  const std::uint32_t below_half = (std::uint32_t{1} << (shift - 1)) - 1;
  const std::uint32_t odd = (value >> shift) & 1;
  return (value + below_half + odd) >> shift;
}

// Returns the code of a finite or infinite magnitude (FP32 bits without sign) before the range
// check: codes continue beyond the largest finite one in steps of one unit in the last place.
template <SignedFormat Format>
TELENS_HOST_DEVICE constexpr std::uint32_t unbounded_code(std::uint32_t magnitude) {
  const int field = static_cast<int>(magnitude >> kFloatMantissaBits);
  const std::uint32_t fraction = magnitude & (kFloatHiddenBit - 1);
  const std::uint32_t significand = field > 0 ? fraction | kFloatHiddenBit : fraction;
  const int exponent = (field > 0 ? field : 1) - FP32::kBias;
  const int target = exponent > Format::kMinExponent ? exponent : Format::kMinExponent;

  // Bits of the significand below the last place of the result. 25 or more give zero.
  const int excess = kFloatMantissaBits - Format::kMantissaBits + (target - exponent);
  constexpr int kAllShiftedOut = kFloatMantissaBits + 2;
  const int shift = excess < kAllShiftedOut ? excess : kAllShiftedOut;

  // A normal's hidden bit adds 1 to the exponent field, which corrects its offset. A significand
  // that rounds up to the next power of two carries into the field.
  const auto distance = static_cast<std::uint32_t>(target - Format::kMinExponent);
  return (distance << Format::kMantissaBits) + shift_right_nearest_even(significand, shift);
}

}  // namespace detail

// Returns the exact value of a code. A NaN is quiet, without payload, and keeps its sign.
template <SignedFormat Format>
TELENS_HOST_DEVICE constexpr float decode(typename Format::Bits code) {
  using Bits = typename Format::Bits;
  const std::uint32_t sign = (code & Format::kSignMask) != 0 ? FP32::kSignMask : 0;
  const Bits magnitude = code & Format::kMagnitudeMask;
  if (magnitude > Format::kMaxCode) {
    const bool infinite = Format::kHasInfinity && magnitude == Format::kTopExponentCode;
    return bits_as<float>(sign | (infinite ? FP32::kTopExponentCode : FP32::kNanCode));
  }
  const std::uint32_t shifted = static_cast<std::uint32_t>(magnitude)
                                << (FP32::kMantissaBits - Format::kMantissaBits);
  if constexpr (Format::kBias == FP32::kBias) {
    return bits_as<float>(sign | shifted);  // same exponent range as FP32, including subnormals
  } else {
    if (magnitude < Format::kSmallestNormalCode) {
      const float value = static_cast<float>(magnitude) * Format::kSmallestSubnormal;
      return bits_as<float>(sign | bits_as<std::uint32_t>(value));
    }
    constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(FP32::kBias - Format::kBias)
                                      << FP32::kMantissaBits;
    return bits_as<float>(sign | (shifted + kRebias));
  }
}

// Returns the code nearest to the value, ties to even. NaN becomes Format::kNanCode with its sign.
// Formats without NaN (E2M1, E3M2, E2M3): the result is the largest value (the caller counts it).
template <SignedFormat Format>
TELENS_HOST_DEVICE constexpr typename Format::Bits encode(float value, Saturation saturation) {
  using Bits = typename Format::Bits;
  const auto bits = bits_as<std::uint32_t>(value);
  const Bits sign = (bits & FP32::kSignMask) != 0 ? Format::kSignMask : Bits{0};
  const std::uint32_t magnitude = bits & FP32::kMagnitudeMask;
  if (magnitude > FP32::kTopExponentCode) {
    return Format::kHasNan ? static_cast<Bits>(sign | Format::kNanCode) : Format::kNanCode;
  }
  const std::uint32_t code = detail::unbounded_code<Format>(magnitude);
  if (code <= Format::kMaxCode) return static_cast<Bits>(sign | code);
  const Bits beyond =
      saturation == Saturation::saturating ? Format::kMaxCode : Format::kOverflowCode;
  return static_cast<Bits>(sign | beyond);
}

// Returns the exact value of a block scale (code 0 is an FP32 subnormal).
template <typename Format>
requires std::same_as<Format, E8M0> TELENS_HOST_DEVICE constexpr float decode(std::uint8_t code) {
  if (code == E8M0::kNanCode) return bits_as<float>(FP32::kNanCode);
  return power_of_two(static_cast<int>(code) - E8M0::kBias);
}

// Returns the block scale of a value. Zero and values below the smallest scale become the smallest
// in all modes; negative values and NaN become NaN.
template <typename Format>
requires std::same_as<Format, E8M0> TELENS_HOST_DEVICE constexpr std::uint8_t encode(
    float value, Saturation saturation, ScaleRounding rounding = ScaleRounding::up) {
  const auto bits = bits_as<std::uint32_t>(value);
  if (bits == FP32::kSignMask) return 0;  // -0; other negative values compare above +NaN
  if (bits > FP32::kTopExponentCode) return E8M0::kNanCode;

  // The smallest scale, 2^-127, is half of FP32's smallest normal: below 2^-126 the exponent field
  // is 0, and the upper half of the fractions is between the two smallest scales.
  constexpr std::uint32_t kSmallestScale = detail::kFloatHiddenBit >> 1;
  std::uint32_t code = bits >> FP32::kMantissaBits;
  const std::uint32_t fraction = bits & (detail::kFloatHiddenBit - 1);
  if (rounding == ScaleRounding::up) {
    code += code == 0 ? fraction > kSmallestScale : fraction > 0;
  } else if (rounding == ScaleRounding::nearest) {
    // Halfway to the next power of two: 1.5 * 2^n, or, between 2^-127 and 2^-126, 1.5 * 2^-127.
    const std::uint32_t half =
        code == 0 ? kSmallestScale + (kSmallestScale >> 1) : detail::kFloatHiddenBit >> 1;
    code += fraction >= half;
  }
  if (code <= E8M0::kMaxCode) return static_cast<std::uint8_t>(code);
  return saturation == Saturation::saturating ? E8M0::kMaxCode : E8M0::kNanCode;
}

}  // namespace telens
