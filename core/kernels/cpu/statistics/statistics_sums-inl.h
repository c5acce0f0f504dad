// Sums over a chunk: in FP32 if the chunk's codes show that this is accurate enough, in double
// otherwise.
// Included once for every SIMD target (Highway's foreach_target).
#if defined(TELENS_CORE_KERNELS_CPU_STATISTICS_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TELENS_CORE_KERNELS_CPU_STATISTICS_SUMS_INL_H_
#undef TELENS_CORE_KERNELS_CPU_STATISTICS_SUMS_INL_H_
#else
#define TELENS_CORE_KERNELS_CPU_STATISTICS_SUMS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/kernels/cpu/fp8_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace telens::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Doubles = hn::ScalableTag<double>;
using DoubleVector = hn::Vec<Doubles>;

// Elements per load_pair, for any format.
HWY_INLINE std::size_t pair_lanes() { return 2 * hn::Lanes(Float32s()); }

// The FP32 values of pair_lanes() elements, exact. Their order is unspecified: sums do not need it.
template <typename Format>
HWY_INLINE Turns<FloatVector> load_pair(const typename Format::Bits* codes) {
  const Float32s floats;
  if constexpr (Format::kId == FormatId::bf16) {
    return widen_bf16(hn::LoadU(Codes16(), codes));
  } else if constexpr (Format::kId == FormatId::fp16) {
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2
    // Without F16C, Highway decodes infinities as numbers.
    const Codes32 words;
    const auto both = hn::BitCast(words, hn::LoadU(Codes16(), codes));
    const auto widen = [&](Vector32 code) HWY_ATTR {
      const auto magnitude = decode_magnitude<FP16>(hn::And(code, hn::Set(words, 0x7fff)));
      const auto sign = hn::ShiftLeft<16>(hn::And(code, hn::Set(words, 0x8000)));
      return hn::Or(magnitude, hn::BitCast(floats, sign));
    };
    return {widen(both), widen(hn::ShiftRight<16>(both))};
#else
    const hn::Rebind<hwy::float16_t, Float32s> halves;
    const auto* from = reinterpret_cast<const hwy::float16_t*>(codes);
    return {hn::PromoteTo(floats, hn::LoadU(halves, from)),
            hn::PromoteTo(floats, hn::LoadU(halves, from + hn::Lanes(floats)))};
#endif
  } else {
    const auto* from = reinterpret_cast<const float*>(codes);
    return {hn::LoadU(floats, from), hn::LoadU(floats, from + hn::Lanes(floats))};
  }
}

struct ChunkSums {
  double sum = 0;
  double l1 = 0;
  double squares = 0;
  double m2 = 0;
};

static HWY_NOINLINE double sum_lanes(FloatVector a, FloatVector b) {
  const Float32s floats;
  return hn::GetLane(hn::SumOfLanes(floats, hn::Add(a, b)));
}
static HWY_NOINLINE double sum_lanes(DoubleVector a, DoubleVector b) {
  const Doubles doubles;
  return hn::GetLane(hn::SumOfLanes(doubles, hn::Add(a, b)));
}

// sum (x - mean)^2 = sum x^2 - (sum x)^2 / count.
HWY_INLINE double centred(double squares, double sum, double count) {
  return std::max(0.0, squares - sum * sum / count);
}

// FP32 sums. All elements must be finite, and |x| so small that no sum of squares overflows.
template <typename Format>
HWY_NOINLINE ChunkSums sum_chunk_fp32(const typename Format::Bits* HWY_RESTRICT codes,
                                      std::size_t size) {
  auto sum0 = hn::Zero(Float32s()), sum1 = sum0, l1_0 = sum0, l1_1 = sum0;
  auto squares0 = sum0, squares1 = sum0;
  for (std::size_t i = 0; i < size; i += pair_lanes()) {
    const auto [even, odd] = load_pair<Format>(codes + i);
    sum0 = hn::Add(sum0, even);
    sum1 = hn::Add(sum1, odd);
    l1_0 = hn::Add(l1_0, hn::Abs(even));
    l1_1 = hn::Add(l1_1, hn::Abs(odd));
    squares0 = hn::MulAdd(even, even, squares0);
    squares1 = hn::MulAdd(odd, odd, squares1);
  }
  const double sum = sum_lanes(sum0, sum1);
  const double squares = sum_lanes(squares0, squares1);
  return {sum, sum_lanes(l1_0, l1_1), squares, centred(squares, sum, static_cast<double>(size))};
}

// The halves of FP32 lanes as doubles.
HWY_INLINE DoubleVector lower_doubles(FloatVector values) {
  return hn::PromoteTo(Doubles(), hn::LowerHalf(hn::Half<Float32s>(), values));
}
HWY_INLINE DoubleVector upper_doubles(FloatVector values) {
  return hn::PromoteTo(Doubles(), hn::UpperHalf(hn::Half<Float32s>(), values));
}

HWY_INLINE FloatVector zero_unless_finite(FloatVector values) {
  return hn::IfThenElseZero(hn::IsFinite(values), values);
}

// sum (x - mean)^2 of the finite elements, in a separate pass: exact to double's rounding, however
// large the mean is relative to the deviation.
template <typename Format>
HWY_NOINLINE double centred_squares(const typename Format::Bits* HWY_RESTRICT codes,
                                    std::size_t size, double mean_of_finite) {
  const auto mean = hn::Set(Doubles(), mean_of_finite);
  const auto one = hn::Set(Float32s(), 1.0F);
  auto squares0 = hn::Zero(Doubles()), squares1 = squares0;
  const auto add = [&](FloatVector values) HWY_ATTR {
    const auto counts = hn::IfThenElseZero(hn::IsFinite(values), one);
    const auto x = zero_unless_finite(values);
    const auto low = hn::NegMulAdd(mean, lower_doubles(counts), lower_doubles(x));
    const auto high = hn::NegMulAdd(mean, upper_doubles(counts), upper_doubles(x));
    squares0 = hn::MulAdd(low, low, squares0);
    squares1 = hn::MulAdd(high, high, squares1);
  };
  for (std::size_t i = 0; i < size; i += pair_lanes()) {
    const auto [even, odd] = load_pair<Format>(codes + i);
    add(even);
    add(odd);
  }
  return sum_lanes(squares0, squares1);
}

// Double sums of the finite elements only; `finite` is their number.
template <typename Format>
HWY_NOINLINE ChunkSums sum_chunk_double(const typename Format::Bits* HWY_RESTRICT codes,
                                        std::size_t size, double finite) {
  auto sum0 = hn::Zero(Doubles()), sum1 = sum0, l1_0 = sum0, l1_1 = sum0;
  auto squares0 = sum0, squares1 = sum0;
  for (std::size_t i = 0; i < size; i += pair_lanes()) {
    const auto pair = load_pair<Format>(codes + i);
    const auto even = zero_unless_finite(pair.even);
    const auto odd = zero_unless_finite(pair.odd);
    const auto a = lower_doubles(even), b = upper_doubles(even);
    const auto c = lower_doubles(odd), d = upper_doubles(odd);
    sum0 = hn::Add(sum0, hn::Add(a, b));
    sum1 = hn::Add(sum1, hn::Add(c, d));
    l1_0 = hn::Add(l1_0, hn::Add(hn::Abs(a), hn::Abs(b)));
    l1_1 = hn::Add(l1_1, hn::Add(hn::Abs(c), hn::Abs(d)));
    squares0 = hn::MulAdd(a, a, hn::MulAdd(b, b, squares0));
    squares1 = hn::MulAdd(c, c, hn::MulAdd(d, d, squares1));
  }
  ChunkSums sums{sum_lanes(sum0, sum1), sum_lanes(l1_0, l1_1), sum_lanes(squares0, squares1), 0};
  if (finite == 0) return sums;
  sums.m2 = centred(sums.squares, sums.sum, finite);
  // Below this ratio, the subtraction leaves less than ten of double's sixteen digits.
  constexpr double kCancelled = 1e-6;
  if (sums.m2 < kCancelled * sums.squares) {
    sums.m2 = centred_squares<Format>(codes, size, sums.sum / finite);
  }
  return sums;
}

}  // namespace telens::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the include guard of this target
