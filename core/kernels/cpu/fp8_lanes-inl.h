// Encoding and decoding of the number formats in vectors, bit for bit like core/formats/convert.h.
// Included once for every SIMD target (Highway's foreach_target).
//
// All functions work on magnitudes. The sign bit is removed before and restored after, so the sign
// of a NaN does not depend on the processor's multiplication.
#if defined(TELENS_CORE_KERNELS_CPU_FP8_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TELENS_CORE_KERNELS_CPU_FP8_LANES_INL_H_
#undef TELENS_CORE_KERNELS_CPU_FP8_LANES_INL_H_
#else
#define TELENS_CORE_KERNELS_CPU_FP8_LANES_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "core/formats/convert.h"

HWY_BEFORE_NAMESPACE();
namespace telens::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Float32s = hn::ScalableTag<float>;
using Codes8 = hn::ScalableTag<std::uint8_t>;
using Codes16 = hn::ScalableTag<std::uint16_t>;
using Codes32 = hn::ScalableTag<std::uint32_t>;

using FloatVector = hn::Vec<Float32s>;
using Vector16 = hn::Vec<Codes16>;
using Vector32 = hn::Vec<Codes32>;

inline constexpr std::uint16_t kSign16 = 0x8000;

// Two vectors of 32-bit lanes that interleave to one vector of 16-bit lanes: `even` has its lanes
// 0, 2, 4, ...
template <typename Vector>
struct Turns {
  Vector even;
  Vector odd;
};

// Prefetch distance of memory that is read once: a page, because the hardware prefetcher stops at
// the end of a page. Quantizing data that is not in the cache is 1.4 times as fast with it.
inline constexpr std::size_t kBytesAhead = 4096;

// Loads the vector at `from` in memory that is read front to back. The prefetched address may be
// past the end: that is not a valid pointer in C++, but a prefetch of it is harmless.
template <typename Tag>
HWY_INLINE hn::Vec<Tag> load_ahead(Tag lanes, const hn::TFromD<Tag>* from) {
  const auto ahead = reinterpret_cast<std::uintptr_t>(from) + kBytesAhead;
  hwy::Prefetch(reinterpret_cast<const char*>(ahead));
  return hn::LoadU(lanes, from);
}

// Mantissa bits of FP32 minus mantissa bits of the format.
template <typename Format>
inline constexpr int kExtraMantissaBits = FP32::kMantissaBits - Format::kMantissaBits;

// a > b for unsigned codes. x86 has only signed comparisons before AVX-512.
template <typename Tag>
HWY_INLINE hn::Mask<Tag> greater(Tag codes, hn::Vec<Tag> a, hn::TFromD<Tag> b) {
  const hn::RebindToSigned<Tag> integers;
  return hn::RebindMask(codes,
                        hn::Gt(hn::BitCast(integers, a), hn::BitCast(integers, hn::Set(codes, b))));
}

// The FP32 values of BF16 codes.
HWY_INLINE Turns<FloatVector> widen_bf16(Vector16 codes) {
  const Codes32 pairs;
  const Float32s floats;
  const auto both = hn::BitCast(pairs, codes);
  return {hn::BitCast(floats, hn::ShiftLeft<16>(both)),
          hn::BitCast(floats, hn::And(both, hn::Set(pairs, 0xffff0000)))};
}

// encode<Format>(|value|, saturation). The sign bits of the values are clear, except that a NaN may
// have either sign.
//
// Rounding: a magnitude in [2^e, 2^(e+1)) added to 2^(e + kExtraMantissaBits) gives a float whose
// unit in the last place is Format's unit at that exponent, 2^(e - M). Its low bits count these
// units. Below the smallest normal, e stays the exponent of the smallest normal, which gives the
// unit of subnormals. Units that round up to the next power of two carry into the code's exponent
// field.
//
// Exponents are computed on the upper halves of the floats, two values at a time. If an exponent is
// out of range, its units are meaningless, but the resulting code is never below the largest one.
template <typename Format, Saturation saturation>
HWY_INLINE Vector16 encode_magnitudes(Turns<FloatVector> values) {
  static_assert(saturation == Saturation::saturating || Format::kHasInfinity);
  constexpr int kFieldShift = BF16::kMantissaBits;  // position of the exponent field
  constexpr std::uint16_t kSmallestField = (FP32::kBias + Format::kMinExponent) << kFieldShift;
  constexpr std::uint16_t kMagicOffset = kExtraMantissaBits<Format> << kFieldShift;
  constexpr std::uint16_t kLargestCode =
      saturation == Saturation::saturating ? Format::kMaxCode : Format::kTopExponentCode;
  const Codes16 codes;
  const Codes32 words;

  const auto upper_even = hn::ShiftRight<16>(hn::BitCast(words, values.even));
  const auto upper =
      hn::And(hn::OddEven(hn::BitCast(codes, values.odd), hn::BitCast(codes, upper_even)),
              hn::Set(codes, BF16::kMagnitudeMask));
  // The exponent field minus the field of the smallest normal; 0 if it is smaller.
  auto distance = hn::SaturatedSub(hn::And(upper, hn::Set(codes, BF16::kTopExponentCode)),
                                   hn::Set(codes, kSmallestField));
  const auto magic = widen_bf16(hn::Add(distance, hn::Set(codes, kSmallestField + kMagicOffset)));
  const auto rounded_even = hn::BitCast(words, hn::Add(values.even, magic.even));
  const auto rounded_odd = hn::BitCast(words, hn::Add(values.odd, magic.odd));
  const auto units = hn::OddEven(hn::BitCast(codes, hn::ShiftLeft<16>(rounded_odd)),
                                 hn::BitCast(codes, rounded_even));
  Vector16 exponent;
  if constexpr (Format::kMantissaBits <= kFieldShift) {
    exponent = hn::ShiftRight<kFieldShift - Format::kMantissaBits>(distance);
  } else {
    // Two above the largest exponent is out of range and fits 16 bits.
    constexpr int kBeyond = Format::kMaxExponent + 2 - Format::kMinExponent;
    distance = hn::Min(distance, hn::Set(codes, kBeyond << kFieldShift));
    exponent = hn::ShiftLeft<Format::kMantissaBits - kFieldShift>(distance);
  }
  const auto code = hn::Min(hn::SaturatedAdd(exponent, units), hn::Set(codes, kLargestCode));
  const auto is_nan = greater(codes, upper, BF16::kTopExponentCode);
  return hn::IfThenElse(is_nan, hn::Set(codes, Format::kNanCode), code);
}

// encode<Format>(value, non_saturating) of magnitudes, including infinity and NaN.
template <typename Format>
HWY_INLINE Vector16 round_magnitudes(Turns<FloatVector> values) {
  if constexpr (Format::kId != FormatId::bf16) {
    return encode_magnitudes<Format, Saturation::non_saturating>(values);
  } else {
    // BF16 has the exponents of FP32: rounding is an integer addition. A quiet NaN without payload
    // is unchanged.
    const Codes16 codes;
    const Codes32 words;
    const auto rounded = [&](FloatVector value) HWY_ATTR {
      const auto bits = hn::BitCast(words, value);
      const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1));
      return hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7fff)));
    };
    return hn::OddEven(hn::BitCast(codes, rounded(values.odd)),
                       hn::BitCast(codes, hn::ShiftRight<16>(rounded(values.even))));
  }
}

// decode<Format>(code) of unsigned codes; NaNs keep their payload.
template <typename Format>
HWY_INLINE FloatVector decode_magnitude(Vector32 code) {
  static_assert(Format::kHasInfinity);
  constexpr std::uint32_t kRebias = (FP32::kBias - Format::kBias) << FP32::kMantissaBits;
  constexpr auto kSmallestNormal = bits_as<std::uint32_t>(Format::kSmallestNormal);
  const Float32s floats;
  const Codes32 words;

  const auto shifted = hn::ShiftLeft<kExtraMantissaBits<Format>>(code);
  const auto normal = hn::Add(shifted, hn::Set(words, kRebias));
  // A subnormal read as the mantissa of the smallest normal is too large by exactly that normal.
  const auto subnormal =
      hn::Sub(hn::BitCast(floats, hn::Add(shifted, hn::Set(words, kSmallestNormal))),
              hn::Set(floats, Format::kSmallestNormal));
  const auto special = hn::Or(shifted, hn::Set(words, FP32::kTopExponentCode));

  const auto is_normal = greater(words, code, Format::kSmallestNormalCode - 1);
  const auto is_special = greater(words, code, Format::kMaxCode);
  const auto finite = hn::IfThenElse(is_normal, normal, hn::BitCast(words, subnormal));
  return hn::BitCast(floats, hn::IfThenElse(is_special, special, finite));
}

// The BF16 codes of subnormal FP8 codes and zero, as a table of 16 bytes.
template <typename Format>
struct SubnormalsInBf16 {
  static_assert(Format::kSmallestNormalCode <= 8);
  alignas(16) std::uint16_t codes[8] = {};

  constexpr SubnormalsInBf16() {
    for (std::uint8_t i = 0; i < Format::kSmallestNormalCode; ++i) {
      codes[i] = encode<BF16>(decode<Format>(i), Saturation::saturating);
    }
  }
};

// The BF16 codes of unsigned FP8 codes. Exact. NaN becomes BF16::kNanCode.
template <typename Format>
HWY_INLINE Vector16 decode_magnitude_to_bf16(Vector16 code) {
  static constexpr SubnormalsInBf16<Format> kSubnormals;
  constexpr int kExtraBits = BF16::kMantissaBits - Format::kMantissaBits;
  constexpr std::uint16_t kRebias = (BF16::kBias - Format::kBias) << BF16::kMantissaBits;
  constexpr auto kLastNumber = Format::kHasInfinity ? Format::kTopExponentCode : Format::kMaxCode;
  const Codes16 codes;
  const Codes8 bytes;

  const auto normal = hn::Add(hn::ShiftLeft<kExtraBits>(code), hn::Set(codes, kRebias));
  // Entry i is the bytes 2 i and 2 i + 1. The masks keep the index of a normal code, whose entry is
  // not used, inside the table.
  const auto entry = hn::And(code, hn::Set(codes, 7));
  const auto index =
      hn::Add(hn::Or(hn::ShiftLeft<1>(entry), hn::ShiftLeft<9>(entry)), hn::Set(codes, 0x0100));
  const auto table = hn::BitCast(bytes, hn::LoadDup128(codes, kSubnormals.codes));
  const auto subnormal = hn::BitCast(codes, hn::TableLookupBytes(table, hn::BitCast(bytes, index)));

  const auto is_normal = greater(codes, code, Format::kSmallestNormalCode - 1);
  auto value = hn::IfThenElse(is_normal, normal, subnormal);
  if constexpr (Format::kHasInfinity) {
    const auto is_infinite = hn::Eq(code, hn::Set(codes, Format::kTopExponentCode));
    value = hn::IfThenElse(is_infinite, hn::Set(codes, BF16::kTopExponentCode), value);
  }
  const auto is_nan = greater(codes, code, kLastNumber);
  return hn::IfThenElse(is_nan, hn::Set(codes, BF16::kNanCode), value);
}

}  // namespace telens::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the include guard of this target
