// The number formats as types: layout, special codes, range. Header-only, constexpr, no LibTorch.
//
// Sources: E4M3 and E5M2: OCP 8-bit Floating Point Specification (OFP8) 1.0; E2M1, E3M2, E2M3 and
// E8M0: OCP Microscaling Formats (MX) Specification 1.0; FP16 and FP32: IEEE 754 binary16 and
// binary32; BF16: the upper half of binary32. core/formats/convert.h has decode<Format> and
// encode<Format>.
#pragma once

#include <concepts>
#include <cstdint>

#include "core/formats/bits.h"
#include "core/formats/format_id.h"

namespace telens {

// The codes of a format that are not finite numbers.
enum class SpecialCodes {
  infinity_and_nan,  // the top exponent, as in IEEE 754
  nan_only,          // magnitude bits all ones is NaN, every other code is finite
  none,              // every code is finite
};

// A format with a sign bit: sign, exponent, mantissa from the most significant bit down.
//   exponent field e > 0: (-1)^sign * 2^(e - bias) * (1 + mantissa / 2^M)
//   exponent field e = 0: (-1)^sign * 2^(1 - bias) * (mantissa / 2^M)      (zero and subnormals)
template <FormatId format_id, typename BitsType, int exponent_bits, int mantissa_bits,
          SpecialCodes special_codes>
struct FloatFormat {
  using Bits = BitsType;

  static constexpr FormatId kId = format_id;
  static constexpr int kExponentBits = exponent_bits;
  static constexpr int kMantissaBits = mantissa_bits;
  static constexpr int kWidth = 1 + exponent_bits + mantissa_bits;  // bits of a code
  static constexpr int kBias = (1 << (exponent_bits - 1)) - 1;
  static constexpr SpecialCodes kSpecialCodes = special_codes;
  static constexpr bool kHasInfinity = special_codes == SpecialCodes::infinity_and_nan;
  static constexpr bool kHasNan = special_codes != SpecialCodes::none;

  static constexpr Bits kSignMask = Bits{1} << (exponent_bits + mantissa_bits);
  static constexpr Bits kMagnitudeMask = kSignMask - 1;
  // Exponent field all ones, mantissa zero: infinity if the format has one.
  static constexpr Bits kTopExponentCode = kMagnitudeMask - ((Bits{1} << mantissa_bits) - 1);

  // The largest finite magnitude: the code below infinity or NaN, or all ones.
  static constexpr Bits kMaxCode = kHasInfinity ? kTopExponentCode - 1
                                   : kHasNan    ? kMagnitudeMask - 1
                                                : kMagnitudeMask;
  static constexpr Bits kSmallestNormalCode = Bits{1} << mantissa_bits;
  static constexpr Bits kSmallestSubnormalCode = 1;

  // The code of a positive NaN. 8 bits: all ones, like torch and the conversion instructions of
  // GPUs. Wider formats: the quiet NaN without payload. Formats without NaN: the largest value.
  static constexpr Bits kNanCode =
      special_codes == SpecialCodes::none ? kMaxCode
      : kWidth == 8                       ? kMagnitudeMask
                    : kTopExponentCode | static_cast<Bits>(Bits{1} << (mantissa_bits - 1));

  // The code of a value beyond the range, without saturation.
  static constexpr Bits kOverflowCode = kHasInfinity ? kTopExponentCode : kNanCode;

  static constexpr int kMinExponent = 1 - kBias;  // of the smallest normal and of subnormals
  static constexpr int kMaxExponent = (kMaxCode >> mantissa_bits) - kBias;  // of the largest value

  static constexpr float kMax =
      power_of_two(kMaxExponent) *
      (1.0F + static_cast<float>(kMaxCode & ((Bits{1} << mantissa_bits) - 1)) *
                  power_of_two(-mantissa_bits));
  static constexpr float kSmallestNormal = power_of_two(kMinExponent);
  static constexpr float kSmallestSubnormal = power_of_two(kMinExponent - mantissa_bits);
};

using E4M3 = FloatFormat<FormatId::e4m3, std::uint8_t, 4, 3, SpecialCodes::nan_only>;
using E5M2 = FloatFormat<FormatId::e5m2, std::uint8_t, 5, 2, SpecialCodes::infinity_and_nan>;
using E2M1 = FloatFormat<FormatId::e2m1, std::uint8_t, 2, 1, SpecialCodes::none>;
using E3M2 = FloatFormat<FormatId::e3m2, std::uint8_t, 3, 2, SpecialCodes::none>;
using E2M3 = FloatFormat<FormatId::e2m3, std::uint8_t, 2, 3, SpecialCodes::none>;
using BF16 = FloatFormat<FormatId::bf16, std::uint16_t, 8, 7, SpecialCodes::infinity_and_nan>;
using FP16 = FloatFormat<FormatId::fp16, std::uint16_t, 5, 10, SpecialCodes::infinity_and_nan>;
using FP32 = FloatFormat<FormatId::fp32, std::uint32_t, 8, 23, SpecialCodes::infinity_and_nan>;

// The scale of a block: 2^(code - 127), no sign, no zero; 255 is NaN.
struct E8M0 {
  using Bits = std::uint8_t;

  static constexpr FormatId kId = FormatId::e8m0;
  static constexpr int kExponentBits = 8;
  static constexpr int kMantissaBits = 0;
  static constexpr int kWidth = 8;
  static constexpr int kBias = 127;
  static constexpr bool kHasInfinity = false;
  static constexpr bool kHasNan = true;

  static constexpr Bits kMaxCode = 0xfe;
  static constexpr Bits kNanCode = 0xff;
  static constexpr int kMinExponent = -kBias;
  static constexpr int kMaxExponent = kMaxCode - kBias;

  static constexpr float kMax = power_of_two(kMaxExponent);
  static constexpr float kSmallest = power_of_two(kMinExponent);  // an FP32 subnormal
};

template <typename F>
concept SignedFormat = requires {
  F::kSignMask;
};

// Checks the derivations against the specifications.
static_assert(E4M3::kBias == 7 && E4M3::kMaxCode == 0x7e && E4M3::kMax == 448.0F);  // 1.75 * 2^8
static_assert(E4M3::kSmallestNormal == 0x1p-6F && E4M3::kSmallestSubnormal == 0x1p-9F);
static_assert(E5M2::kBias == 15 && E5M2::kMaxCode == 0x7b &&
              E5M2::kMax == 57344.0F);  // 1.75 * 2^15
static_assert(E5M2::kSmallestNormal == 0x1p-14F && E5M2::kSmallestSubnormal == 0x1p-16F);
static_assert(E2M1::kBias == 1 && E2M1::kMaxCode == 0x7 && E2M1::kMax == 6.0F);  // 1.5 * 2^2
static_assert(E2M1::kSmallestNormal == 1.0F && E2M1::kSmallestSubnormal == 0.5F);
static_assert(E3M2::kBias == 3 && E3M2::kMaxCode == 0x1f && E3M2::kMax == 28.0F);  // 1.75 * 2^4
static_assert(E3M2::kSmallestNormal == 0x1p-2F && E3M2::kSmallestSubnormal == 0x1p-4F);
static_assert(E2M3::kBias == 1 && E2M3::kMaxCode == 0x1f && E2M3::kMax == 7.5F);  // 1.875 * 2^2
static_assert(E2M3::kSmallestNormal == 1.0F && E2M3::kSmallestSubnormal == 0.125F);
static_assert(E8M0::kMax == 0x1p127F && E8M0::kSmallest == 0x1p-127F);
static_assert(BF16::kBias == 127 && BF16::kMaxCode == 0x7f7f && BF16::kMax == 0x1.fep127F);
static_assert(BF16::kNanCode == 0x7fc0 && BF16::kSmallestSubnormal == 0x1p-133F);
static_assert(FP16::kBias == 15 && FP16::kMaxCode == 0x7bff && FP16::kMax == 65504.0F);
static_assert(FP16::kNanCode == 0x7e00 && FP16::kSmallestSubnormal == 0x1p-24F);
static_assert(FP32::kMax == 0x1.fffffep127F && FP32::kSmallestSubnormal == 0x1p-149F);

// Checks the widths in the table of formats.
template <typename... Formats>
constexpr bool widths_match() {
  return ((format_row(Formats::kId).bits == Formats::kWidth) && ...);
}
static_assert(widths_match<E4M3, E5M2, E2M1, E3M2, E2M3, E8M0, BF16, FP16, FP32>());

}  // namespace telens
