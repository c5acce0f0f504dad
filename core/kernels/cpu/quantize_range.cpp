#include "core/kernels/cpu/quantize_range.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/quantize_range.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "core/formats/dispatch.h"
#include "core/kernels/cpu/fp8_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace telens::HWY_NAMESPACE {
namespace {

// A vector of codes of a high-precision format, each the width of a lane.
template <typename Input>
using LanesOf = hn::ScalableTag<typename Input::Bits>;

template <typename Input>
HWY_INLINE hn::Vec<LanesOf<Input>> magnitude_of(hn::Vec<LanesOf<Input>> code) {
  return hn::And(code, hn::Set(LanesOf<Input>(), Input::kMagnitudeMask));
}

// The FP32 values of 16-bit codes without sign.
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

// One step of the loop: as many elements as a vector has 16-bit lanes. The scale is a magnitude,
// the sign of the true one comes separately; amax takes the largest magnitude of each lane.
template <typename Input, typename Output>
struct QuantizeStep {
  using Lanes = LanesOf<Input>;
  using Vector = hn::Vec<Lanes>;
  using Element = typename Input::Bits;

  FloatVector scale;
  Vector16 sign_of_scale;  // 0 or 0x8000

  static constexpr std::uint16_t kSign16 = 0x8000;

  HWY_INLINE Turns<FloatVector> scaled(Turns<FloatVector> x) const {
    return {hn::Mul(x.even, scale), hn::Mul(x.odd, scale)};
  }

  // The codes, with the sign bits of `signs`, in the low bytes of the lanes.
  HWY_INLINE Vector16 encode(Turns<FloatVector> x, Vector16 signs) const {
    const auto code = encode_magnitudes<Output, Saturation::saturating>(scaled(x));
    const auto sign = hn::And(hn::Xor(signs, sign_of_scale), hn::Set(Codes16(), kSign16));
    return hn::Or(code, hn::ShiftRight<8>(sign));
  }

  HWY_INLINE void operator()(const Element* x, std::uint8_t* codes, Vector& amax) const {
    const Lanes lanes;
    if constexpr (sizeof(Element) == sizeof(std::uint16_t)) {
      const auto element = load_ahead(lanes, x);
      const auto size = magnitude_of<Input>(element);
      amax = hn::Max(amax, size);
      const hn::Rebind<std::uint8_t, Lanes> bytes;
      hn::StoreU(hn::TruncateTo(bytes, encode(widen<Input>(size), element)), bytes, codes);
    } else {
      // Two vectors one after the other; they take turns on the way and part again in the end.
      const Float32s floats;
      const auto first = load_ahead(lanes, x);
      const auto second = load_ahead(lanes, x + hn::Lanes(lanes));
      const auto first_size = magnitude_of<Input>(first);
      const auto second_size = magnitude_of<Input>(second);
      amax = hn::Max(amax, hn::Max(first_size, second_size));
      const auto signs = hn::OddEven(hn::BitCast(Codes16(), second),
                                     hn::BitCast(Codes16(), hn::ShiftRight<16>(first)));
      const auto code = hn::BitCast(
          lanes,
          encode({hn::BitCast(floats, first_size), hn::BitCast(floats, second_size)}, signs));
      const hn::Rebind<std::uint8_t, Lanes> bytes;
      hn::StoreU(hn::TruncateTo(bytes, code), bytes, codes);
      hn::StoreU(hn::TruncateTo(bytes, hn::ShiftRight<16>(code)), bytes, codes + hn::Lanes(lanes));
    }
  }
};

// A function of its own: GCC 12 keeps the accumulators of a loop on the stack when the same
// function stores them.
template <typename Lanes>
HWY_NOINLINE std::uint32_t largest_lane(hn::Vec<Lanes> vector) {
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(Lanes(), vector)));
}

template <typename Input, typename Output>
std::uint32_t quantize_elements(const typename Input::Bits* x, std::size_t size, float scale,
                                std::uint8_t* codes) {
  using Step = QuantizeStep<Input, Output>;
  const Codes16 lanes16;
  const Step step{hn::Set(Float32s(), std::fabs(scale)),
                  hn::Set(lanes16, std::signbit(scale) ? Step::kSign16 : std::uint16_t{0})};
  const std::size_t stride = hn::Lanes(lanes16);
  auto amax = hn::Zero(LanesOf<Input>());
  std::size_t i = 0;
  for (; i + stride <= size; i += stride) step(x + i, codes + i, amax);
  if (const std::size_t rest = size - i; rest > 0) {  // padded with zeros, which no maximum notices
    typename Input::Bits tail[hn::MaxLanes(lanes16)] = {};
    std::uint8_t tail_codes[hn::MaxLanes(lanes16)];
    std::copy_n(x + i, rest, tail);
    step(tail, tail_codes, amax);
    std::copy_n(tail_codes, rest, codes + i);
  }
  return largest_lane<LanesOf<Input>>(amax);
}

template <typename Input>
std::uint32_t amax_elements(const typename Input::Bits* x, std::size_t size) {
  const LanesOf<Input> lanes;
  const std::size_t stride = hn::Lanes(lanes);
  const auto size_at = [&](const typename Input::Bits* at)
                           HWY_ATTR { return magnitude_of<Input>(load_ahead(lanes, at)); };
  // Four accumulators, so that a maximum does not wait for the one before.
  auto amax0 = hn::Zero(lanes), amax1 = amax0, amax2 = amax0, amax3 = amax0;
  std::size_t i = 0;
  for (; i + 4 * stride <= size; i += 4 * stride) {
    amax0 = hn::Max(amax0, size_at(x + i));
    amax1 = hn::Max(amax1, size_at(x + i + stride));
    amax2 = hn::Max(amax2, size_at(x + i + 2 * stride));
    amax3 = hn::Max(amax3, size_at(x + i + 3 * stride));
  }
  for (; i + stride <= size; i += stride) amax0 = hn::Max(amax0, size_at(x + i));
  if (const std::size_t rest = size - i; rest > 0) {
    typename Input::Bits tail[hn::MaxLanes(lanes)] = {};
    std::copy_n(x + i, rest, tail);
    amax1 = hn::Max(amax1, size_at(tail));
  }
  return largest_lane<LanesOf<Input>>(hn::Max(hn::Max(amax0, amax1), hn::Max(amax2, amax3)));
}

}  // namespace

std::uint32_t quantize_range(FormatId input, const void* x, std::size_t size, float scale,
                             FormatId output, std::uint8_t* codes) {
  return dispatch_high_precision_format(input, "quantize_range", [&]<typename Input>() {
    return dispatch_fp8_format(output, "quantize_range", [&]<typename Output>() {
      return quantize_elements<Input, Output>(static_cast<const typename Input::Bits*>(x), size,
                                              scale, codes);
    });
  });
}

std::uint32_t amax_range(FormatId input, const void* x, std::size_t size) {
  return dispatch_high_precision_format(input, "amax_range", [&]<typename Input>() {
    return amax_elements<Input>(static_cast<const typename Input::Bits*>(x), size);
  });
}

}  // namespace telens::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace telens {
HWY_EXPORT(quantize_range);
HWY_EXPORT(amax_range);

namespace kernels {

std::uint32_t quantize_range(FormatId input, const void* x, std::size_t size, float scale,
                             FormatId output, std::uint8_t* codes) {
  return HWY_DYNAMIC_DISPATCH(telens::quantize_range)(input, x, size, scale, output, codes);
}

std::uint32_t amax_range(FormatId input, const void* x, std::size_t size) {
  return HWY_DYNAMIC_DISPATCH(telens::amax_range)(input, x, size);
}

}  // namespace kernels
}  // namespace telens
#endif
