// One step of quantizing and one of decoding FP8 codes: as many elements as a vector has 16-bit
// lanes.
// Included once for every SIMD target (Highway's foreach_target).
#if defined(TELENS_CORE_KERNELS_CPU_FP8_STEPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TELENS_CORE_KERNELS_CPU_FP8_STEPS_INL_H_
#undef TELENS_CORE_KERNELS_CPU_FP8_STEPS_INL_H_
#else
#define TELENS_CORE_KERNELS_CPU_FP8_STEPS_INL_H_
#endif

#include "core/kernels/cpu/fp8_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace telens::HWY_NAMESPACE {

// ---- Quantizing: scales, encodes and stores.

// A vector of codes of a high-precision format, one code per lane.
template <typename Input>
using LanesOf = hn::ScalableTag<typename Input::Bits>;

template <typename Input>
HWY_INLINE hn::Vec<LanesOf<Input>> get_magnitude(hn::Vec<LanesOf<Input>> code) {
  return hn::And(code, hn::Set(LanesOf<Input>(), Input::kMagnitudeMask));
}

// The FP32 values of unsigned 16-bit codes.
template <typename Input>
HWY_INLINE Turns<FloatVector> widen(Vector16 magnitude) {
  if constexpr (Input::kId == FormatId::bf16) {
    return widen_bf16(magnitude);
  } else {
    const Codes32 words;
    const auto both = hn::BitCast(words, magnitude);
    return {decode_magnitude<Input>(hn::And(both, hn::Set(words, 0xffff))),
            decode_magnitude<Input>(hn::ShiftRight<16>(both))};
  }
}

// One scale for all elements: its magnitude. The sign is applied separately.
struct OneScale {
  FloatVector scale;
  Vector16 sign;  // 0 or kSign16

  template <typename Order>
  HWY_INLINE Turns<FloatVector> load(std::size_t, Order) const {
    return {scale, scale};
  }
};

// The lane order of a step's elements in Turns: 16-bit elements alternate between the two vectors,
// 32-bit elements fill the first vector and then the second.
struct TakingTurns {};
struct OneAfterTheOther {};

// A scale per element, positive or NaN.
struct ScalePerElement {
  const float* scales;
  Vector16 sign = hn::Zero(Codes16());

  HWY_INLINE Turns<FloatVector> load(std::size_t i, TakingTurns) const {
    Turns<FloatVector> turns;
    hn::LoadInterleaved2(Float32s(), scales + i, turns.even, turns.odd);
    return turns;
  }
  HWY_INLINE Turns<FloatVector> load(std::size_t i, OneAfterTheOther) const {
    const Float32s floats;
    return {hn::LoadU(floats, scales + i), hn::LoadU(floats, scales + i + hn::Lanes(floats))};
  }
};

// `amax` accumulates the largest magnitude per lane.
template <typename Input, typename Output, typename Scale>
struct QuantizeStep {
  using Lanes = LanesOf<Input>;
  using Vector = hn::Vec<Lanes>;
  using Element = typename Input::Bits;
  static constexpr bool kNarrow = sizeof(Element) == sizeof(std::uint16_t);
  using Order = std::conditional_t<kNarrow, TakingTurns, OneAfterTheOther>;

  Scale scale;

  // The codes, with the sign bits of `signs`, in the low bytes of the lanes.
  HWY_INLINE Vector16 encode(Turns<FloatVector> x, Turns<FloatVector> factor,
                             Vector16 signs) const {
    const Turns<FloatVector> scaled{hn::Mul(x.even, factor.even), hn::Mul(x.odd, factor.odd)};
    const auto code = encode_magnitudes<Output, Saturation::saturating>(scaled);
    auto sign = hn::And(hn::Xor(signs, scale.sign), hn::Set(Codes16(), kSign16));
    if constexpr (!Output::kHasNan) {
      // The code of NaN is positive.
      const Codes32 words;
      const auto nan = [&](FloatVector value) HWY_ATTR {
        return hn::VecFromMask(words, hn::RebindMask(words, hn::IsNaN(value)));
      };
      sign = hn::AndNot(hn::OddEven(hn::BitCast(Codes16(), nan(scaled.odd)),
                                    hn::BitCast(Codes16(), nan(scaled.even))),
                        sign);
    }
    return hn::Or(code, hn::ShiftRight<16 - Output::kWidth>(sign));
  }

  // Processes the elements i, i + 1, ...
  HWY_INLINE void operator()(const Element* x, std::size_t i, std::uint8_t* codes,
                             Vector& amax) const {
    const Lanes lanes;
    const auto factor = scale.load(i, Order());
    if constexpr (kNarrow) {
      const auto element = load_ahead(lanes, x + i);
      const auto size = get_magnitude<Input>(element);
      amax = hn::Max(amax, size);
      const hn::Rebind<std::uint8_t, Lanes> bytes;
      const auto code = encode(widen<Input>(size), factor, element);
      hn::StoreU(hn::TruncateTo(bytes, code), bytes, codes + i);
    } else {
      // Two consecutive vectors. They are interleaved for encoding and separated at the end.
      const Float32s floats;
      const auto first = load_ahead(lanes, x + i);
      const auto second = load_ahead(lanes, x + i + hn::Lanes(lanes));
      const auto first_size = get_magnitude<Input>(first);
      const auto second_size = get_magnitude<Input>(second);
      amax = hn::Max(amax, hn::Max(first_size, second_size));
      const auto signs = hn::OddEven(hn::BitCast(Codes16(), second),
                                     hn::BitCast(Codes16(), hn::ShiftRight<16>(first)));
      const auto code = hn::BitCast(
          lanes, encode({hn::BitCast(floats, first_size), hn::BitCast(floats, second_size)}, factor,
                        signs));
      const hn::Rebind<std::uint8_t, Lanes> bytes;
      hn::StoreU(hn::TruncateTo(bytes, code), bytes, codes + i);
      hn::StoreU(hn::TruncateTo(bytes, hn::ShiftRight<16>(code)), bytes,
                 codes + i + hn::Lanes(lanes));
    }
  }
};

// ---- Decoding.

// Unsigned codes in 16-bit lanes, as BF16 codes, and the signs.
struct Decoded {
  Vector16 magnitude;
  Vector16 sign;
};

// As many 8-bit codes as a vector has 16-bit lanes.
using BytesOfCodes16 = hn::Rebind<std::uint8_t, Codes16>;

template <typename Input>
HWY_INLINE Decoded decode_codes(hn::Vec<BytesOfCodes16> codes) {
  const Codes16 lanes;
  const auto code = hn::PromoteTo(lanes, codes);
  return {decode_magnitude_to_bf16<Input>(hn::And(code, hn::Set(lanes, Input::kMagnitudeMask))),
          hn::And(hn::ShiftLeft<16 - Input::kWidth>(code), hn::Set(lanes, kSign16))};
}

// Moves each 16-bit lane to the upper half of a 32-bit lane, in order.
HWY_INLINE Turns<Vector32> widen_in_order(Vector16 codes) {
  const Codes32 words;
  const hn::Half<Codes16> half;
  return {hn::ShiftLeft<16>(hn::PromoteTo(words, hn::LowerHalf(half, codes))),
          hn::ShiftLeft<16>(hn::PromoteTo(words, hn::UpperHalf(half, codes)))};
}

// Decodes the values of codes to `Output`, BF16 or FP32, in order.
template <typename Input, typename Output>
HWY_INLINE void decode_to(typename Output::Bits* values, hn::Vec<BytesOfCodes16> codes) {
  const Decoded decoded = decode_codes<Input>(codes);
  const auto bf16 = hn::Or(decoded.magnitude, decoded.sign);
  if constexpr (Output::kId == FormatId::bf16) {
    hn::StoreU(bf16, Codes16(), values);
  } else {
    const Codes32 words;
    const auto [lower, upper] = widen_in_order(bf16);
    hn::StoreU(lower, words, values);
    hn::StoreU(upper, words, values + hn::Lanes(words));
  }
}

}  // namespace telens::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the include guard of this target
