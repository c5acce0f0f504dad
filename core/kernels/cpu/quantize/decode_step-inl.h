// One step of decoding FP8 codes: as many elements as a vector has 16-bit lanes.
// Included once for every SIMD target (Highway's foreach_target).
#if defined(TELENS_CORE_KERNELS_CPU_DECODE_STEP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TELENS_CORE_KERNELS_CPU_DECODE_STEP_INL_H_
#undef TELENS_CORE_KERNELS_CPU_DECODE_STEP_INL_H_
#else
#define TELENS_CORE_KERNELS_CPU_DECODE_STEP_INL_H_
#endif

#include "core/kernels/cpu/fp8_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace telens::HWY_NAMESPACE {

// Unsigned codes in 16-bit lanes, as BF16 codes, and the signs.
struct Decoded {
  Vector16 magnitude;
  Vector16 sign;
};

// Equally many codes as a vector has 16-bit lanes.
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
