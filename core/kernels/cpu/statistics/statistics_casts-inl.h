// Sums of the squared errors of casting a chunk to an FP8 format and back.
// Included once for every SIMD target (Highway's foreach_target).
#if defined(TELENS_CORE_KERNELS_CPU_STATISTICS_CASTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TELENS_CORE_KERNELS_CPU_STATISTICS_CASTS_INL_H_
#undef TELENS_CORE_KERNELS_CPU_STATISTICS_CASTS_INL_H_
#else
#define TELENS_CORE_KERNELS_CPU_STATISTICS_CASTS_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <cstddef>

#include "core/kernels/cpu/statistics/statistics_ranges.h"
#include "core/kernels/cpu/statistics/statistics_sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace telens::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// decode(encode(x)) of magnitudes, saturating. Adding a number to a power of two whose unit in the
// last place is Format's unit at the number's exponent rounds the number to that unit. Subtracting
// the power of two again leaves exactly the rounded number. fp8_lanes-inl.h derives the power of
// two.
template <typename Format>
HWY_INLINE FloatVector round_magnitude(FloatVector magnitude) {
  const Float32s floats;
  const Codes32 words;
  constexpr auto kLeastField = bits_as<std::uint32_t>(Format::kSmallestNormal);
  const auto clipped = hn::Min(magnitude, hn::Set(floats, Format::kMax));
  const auto field =
      hn::Max(hn::And(hn::BitCast(words, clipped), hn::Set(words, FP32::kTopExponentCode)),
              hn::Set(words, kLeastField));
  const auto magic = hn::BitCast(
      floats, hn::Add(field, hn::Set(words, kExtraMantissaBits<Format> << FP32::kMantissaBits)));
  return hn::Sub(hn::Add(clipped, magic), magic);
}

// sum (FP32(code * scale_inv) - x)^2 of finite elements, each difference rounded to FP32. Squares
// are FP32 or, with `in_double`, double.
template <typename Format, typename Target, bool in_double>
HWY_NOINLINE double squared_error(const typename Format::Bits* HWY_RESTRICT codes, std::size_t size,
                                  const kernels::CastPlan& plan) {
  const Float32s floats;
  const auto scale = hn::Set(floats, std::fabs(plan.scale));
  const auto scale_inv = hn::Set(floats, std::fabs(plan.scale_inv));
  const auto error = [&](FloatVector x) HWY_ATTR {
    const auto magnitude = hn::Abs(x);
    const auto rounded = round_magnitude<Target>(hn::Mul(magnitude, scale));
    return hn::Sub(hn::Mul(rounded, scale_inv), magnitude);
  };
  if constexpr (in_double) {
    auto even = hn::Zero(Doubles()), odd = even;
    for (std::size_t i = 0; i < size; i += pair_lanes()) {
      const auto pair = load_pair<Format>(codes + i);
      const auto error0 = error(pair.even), error1 = error(pair.odd);
      const auto a = lower_doubles(error0), b = upper_doubles(error0);
      const auto c = lower_doubles(error1), d = upper_doubles(error1);
      even = hn::MulAdd(a, a, hn::MulAdd(b, b, even));
      odd = hn::MulAdd(c, c, hn::MulAdd(d, d, odd));
    }
    return sum_lanes(even, odd);
  } else {
    auto even = hn::Zero(floats), odd = even;
    for (std::size_t i = 0; i < size; i += pair_lanes()) {
      const auto pair = load_pair<Format>(codes + i);
      const auto error0 = error(pair.even), error1 = error(pair.odd);
      even = hn::MulAdd(error0, error0, even);
      odd = hn::MulAdd(error1, error1, odd);
    }
    return sum_lanes(even, odd);
  }
}

}  // namespace telens::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the include guard of this target
