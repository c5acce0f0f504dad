// Sums of the statistics of block casts, in vectors of FP32 lanes.
// Included once for every SIMD target (Highway's foreach_target).
#if defined(TELENS_KERNELS_CPU_STATISTICS_BLOCK_CAST_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TELENS_KERNELS_CPU_STATISTICS_BLOCK_CAST_INL_H_
#undef TELENS_KERNELS_CPU_STATISTICS_BLOCK_CAST_INL_H_
#else
#define TELENS_KERNELS_CPU_STATISTICS_BLOCK_CAST_INL_H_
#endif

#include "core/kernels/cpu/float_lanes-inl.h"
#include "core/ops/scale_formula.h"
#include "core/ops/statistics_layout.h"

HWY_BEFORE_NAMESPACE();
namespace telens::HWY_NAMESPACE {

using Doubles = hn::ScalableTag<double>;
using DoubleVec = hn::Vec<Doubles>;
using Counts = hn::RebindToSigned<Floats>;
using CountVec = hn::Vec<Counts>;

// Elements whose underflows are counted in 32-bit lanes before the counts are added up.
inline constexpr std::int64_t kPiece = 1 << 20;

// The sums of a loop over elements, in registers. Members have no initializers: these would create
// a constructor, which is not compiled for the SIMD target.
struct Lanes {
  DoubleVec lower_error;
  DoubleVec upper_error;
  CountVec underflows;
};

HWY_INLINE Lanes no_lanes() {
  return {hn::Zero(Doubles()), hn::Zero(Doubles()), hn::Zero(Counts())};
}

HWY_INLINE double compute_squared_error(const Lanes& lanes) {
  const auto error = hn::Add(lanes.lower_error, lanes.upper_error);
  return hn::GetLane(hn::SumOfLanes(Doubles(), error));
}

// A separate function: GCC 12 keeps a loop's accumulators on the stack if the function that
// contains the loop also stores them.
HWY_NOINLINE inline void add_lanes(const Lanes& lanes, CastSums& sums) {
  sums.squared_error += compute_squared_error(lanes);
  std::int32_t counts[hn::MaxLanes(kFloats)];
  hn::StoreU(lanes.underflows, Counts(), counts);
  for (std::size_t i = 0; i < hn::Lanes(kFloats); ++i) sums.underflows += counts[i];
}

// Adds the squares of FP32 errors, in double.
HWY_INLINE void add_squared(FloatVec error, Lanes& lanes) {
  const hn::Half<Floats> half;
  const auto lower = hn::PromoteTo(Doubles(), hn::LowerHalf(half, error));
  const auto upper = hn::PromoteTo(Doubles(), hn::UpperHalf(half, error));
  lanes.lower_error = hn::MulAdd(lower, lower, lanes.lower_error);
  lanes.upper_error = hn::MulAdd(upper, upper, lanes.upper_error);
}

HWY_INLINE void count(hn::Mask<Floats> mask, CountVec& counts) {
  counts = hn::Sub(counts, hn::VecFromMask(Counts(), hn::RebindMask(Counts(), mask)));
}

// Returns true if a nonzero element reaches the limit, in units of its scale.
HWY_INLINE bool any_reaches(FloatVec magnitude, FloatVec scale, float limit) {
  const auto reaches = hn::And(hn::Ge(magnitude, hn::Mul(scale, hn::Set(kFloats, limit))),
                               hn::Gt(magnitude, hn::Zero(kFloats)));
  return !hn::AllFalse(kFloats, reaches);
}

// Elements that rounding takes out of their block's range.
template <typename Format>
HWY_INLINE hn::Mask<Floats> clipped(FloatVec magnitude, FloatVec scale) {
  const auto factor = hn::Min(hn::Div(hn::Set(kFloats, 1), scale), hn::Set(kFloats, FP32::kMax));
  const auto limit = hn::Mul(scale, hn::Set(kFloats, Format::kMax));
  return hn::And(hn::Ge(magnitude, limit),  // false if the scale is NaN
                 hn::Ge(hn::Mul(magnitude, factor), hn::Set(kFloats, kFirstClipped<Format>)));
}

// Called for few elements, so the cost of the division is negligible.
template <typename Format>
HWY_NOINLINE std::int64_t count_clipped(FloatVec magnitude, FloatVec scale) {
  return static_cast<std::int64_t>(hn::CountTrue(kFloats, clipped<Format>(magnitude, scale)));
}

template <typename Format>
HWY_INLINE void count_saturated(FloatVec magnitude, FloatVec scale, std::int64_t& saturated) {
  if (HWY_UNLIKELY(any_reaches(magnitude, scale, kNearlyClipped<Format>))) {
    saturated += count_clipped<Format>(magnitude, scale);
  }
}

HWY_INLINE std::int64_t count_overflows(FloatVec magnitude, FloatVec limit) {
  return static_cast<std::int64_t>(hn::CountTrue(kFloats, hn::Gt(magnitude, limit)));
}

template <typename Format>
HWY_INLINE void count_beyond(FloatVec magnitude, FloatVec scale, CastSums& sums) {
  const auto limit = hn::Mul(scale, hn::Set(kFloats, Format::kMax));
  if constexpr (Format::kId == FormatId::e2m1) {
    // The E4M3 scales of packed FP4 round down as often as up, so a branch would be unpredictable.
    sums.overflows += count_overflows(magnitude, limit);
    count_saturated<Format>(magnitude, scale, sums.saturated);
  } else if (HWY_UNLIKELY(any_reaches(magnitude, scale, Format::kMax))) {
    sums.overflows += count_overflows(magnitude, limit);
    sums.saturated += count_clipped<Format>(magnitude, scale);
  }
}

}  // namespace telens::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the include guard of this target
