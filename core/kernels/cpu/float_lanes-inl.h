// Vectors of FP32 lanes from and to memory of any high-precision dtype, and loops over them.
// Included once for every SIMD target (Highway's foreach_target).
#if defined(TELENS_KERNELS_CPU_FLOAT_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TELENS_KERNELS_CPU_FLOAT_LANES_INL_H_
#undef TELENS_KERNELS_CPU_FLOAT_LANES_INL_H_
#else
#define TELENS_KERNELS_CPU_FLOAT_LANES_INL_H_
#endif

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace telens::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using FloatVec = hn::Vec<Floats>;
using Halves = hn::Rebind<std::uint16_t, Floats>;  // equally many 16-bit lanes

inline constexpr Floats kFloats{};
inline constexpr Halves kHalves{};

// Exact.
HWY_INLINE FloatVec load(const float* from) { return hn::LoadU(kFloats, from); }

HWY_INLINE FloatVec load(const c10::BFloat16* from) {
  const auto codes = hn::LoadU(kHalves, reinterpret_cast<const std::uint16_t*>(from));
  const hn::RebindToUnsigned<Floats> words;
  return hn::BitCast(kFloats, hn::ShiftLeft<16>(hn::PromoteTo(words, codes)));
}

HWY_INLINE FloatVec load(const c10::Half* from) {
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2
  // Without F16C, Highway decodes infinity and NaN as numbers.
  float values[hn::MaxLanes(kFloats)];
  for (std::size_t i = 0; i < hn::Lanes(kFloats); ++i) values[i] = static_cast<float>(from[i]);
  return hn::LoadU(kFloats, values);
#else
  const hn::Rebind<hwy::float16_t, Floats> halves;
  const auto codes = hn::LoadU(kHalves, reinterpret_cast<const std::uint16_t*>(from));
  return hn::PromoteTo(kFloats, hn::BitCast(halves, codes));
#endif
}

// Rounded to nearest, ties to even; NaN stays NaN.
HWY_INLINE void store(FloatVec value, float* to) { hn::StoreU(value, kFloats, to); }

HWY_INLINE void store(FloatVec value, c10::BFloat16* to) {
  const hn::RebindToUnsigned<Floats> words;
  const auto bits = hn::BitCast(words, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7FFF))));
  const auto quiet_nan = hn::Set(words, 0x7FC0);
  const auto codes = hn::IfThenElse(hn::RebindMask(words, hn::IsNaN(value)), quiet_nan, rounded);
  // The saturating conversion from int32 is exact because codes are less than 2^16.
  const hn::RebindToSigned<Floats> integers;
  hn::StoreU(hn::DemoteTo(kHalves, hn::BitCast(integers, codes)), kHalves,
             reinterpret_cast<std::uint16_t*>(to));
}

HWY_INLINE void store(FloatVec value, c10::Half* to) {
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2
  // Without F16C, Highway truncates instead of rounding.
  float values[hn::MaxLanes(kFloats)];
  hn::StoreU(value, kFloats, values);
  for (std::size_t i = 0; i < hn::Lanes(kFloats); ++i) to[i] = values[i];
#else
  const hn::Rebind<hwy::float16_t, Floats> halves;
  hn::StoreU(hn::BitCast(kHalves, hn::DemoteTo(halves, value)), kHalves,
             reinterpret_cast<std::uint16_t*>(to));
#endif
}

// Reads memory at one position of a row: at(p) is the vector that begins at p[position].
struct FullLanes {
  std::int64_t position;

  template <typename T>
  HWY_INLINE FloatVec operator()(const T* row) const {
    return load(row + position);
  }
};

// Reads memory at the last position of a row, which is shorter than a vector. The lanes after the
// last element are zero.
struct LastLanes {
  std::int64_t position;
  std::size_t count;

  template <typename T>
  HWY_INLINE FloatVec operator()(const T* row) const {
    T lanes[hn::MaxLanes(kFloats)] = {};
    std::memcpy(lanes, row + position, count * sizeof(T));
    return load(lanes);
  }
};

template <typename T>
HWY_INLINE void store_first(FloatVec value, std::size_t count, T* to) {
  T lanes[hn::MaxLanes(kFloats)];
  store(value, lanes);
  std::memcpy(to, lanes, count * sizeof(T));
}

// Writes to[i] = value of element i. `value(at)` computes a vector from at(row), with `row` a
// pointer to the first element of any array of the same length. `to` may be one of those arrays.
template <typename T, typename Value>
HWY_INLINE void map_lanes(std::int64_t length, T* to, const Value& value) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(kFloats));
  std::int64_t i = 0;
  for (; i + lanes <= length; i += lanes) store(value(FullLanes{i}), to + i);
  if (i < length) {
    const auto count = static_cast<std::size_t>(length - i);
    store_first(value(LastLanes{i, count}), count, to + i);
  }
}

// The sum of the elements' values in FP32: four accumulators a lane, added in a fixed order.
template <typename Value>
HWY_INLINE float sum_lanes(std::int64_t length, const Value& value) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(kFloats));
  FloatVec a = hn::Zero(kFloats), b = a, c = a, d = a;
  std::int64_t i = 0;
  for (; i + 4 * lanes <= length; i += 4 * lanes) {
    a = hn::Add(a, value(FullLanes{i}));
    b = hn::Add(b, value(FullLanes{i + lanes}));
    c = hn::Add(c, value(FullLanes{i + 2 * lanes}));
    d = hn::Add(d, value(FullLanes{i + 3 * lanes}));
  }
  for (; i + lanes <= length; i += lanes) a = hn::Add(a, value(FullLanes{i}));
  if (i < length) {
    const auto count = static_cast<std::size_t>(length - i);
    b = hn::Add(b, hn::IfThenElseZero(hn::FirstN(kFloats, count), value(LastLanes{i, count})));
  }
  return hn::GetLane(hn::SumOfLanes(kFloats, hn::Add(hn::Add(a, b), hn::Add(c, d))));
}

}  // namespace telens::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
