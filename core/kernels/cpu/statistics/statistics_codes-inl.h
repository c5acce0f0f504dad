// Extremes and counters of a chunk, computed with integer operations on its codes.
// Included once for every SIMD target (Highway's foreach_target).
#if defined(TELENS_CORE_KERNELS_CPU_STATISTICS_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TELENS_CORE_KERNELS_CPU_STATISTICS_CODES_INL_H_
#undef TELENS_CORE_KERNELS_CPU_STATISTICS_CODES_INL_H_
#else
#define TELENS_CORE_KERNELS_CPU_STATISTICS_CODES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/formats/formats.h"

HWY_BEFORE_NAMESPACE();
namespace telens::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// 16-bit or 32-bit lanes of a format's codes, as unsigned or signed integers.
template <typename Format>
using Unsigneds = hn::ScalableTag<typename Format::Bits>;
template <typename Format>
using Signeds = hn::RebindToSigned<Unsigneds<Format>>;

// A separate function: GCC 12 keeps a loop's accumulators on the stack if the function that
// contains the loop also stores them.
template <typename Lanes>
HWY_NOINLINE hn::TFromD<Lanes> smallest_lane(hn::Vec<Lanes> vector) {
  return hn::GetLane(hn::MinOfLanes(Lanes(), vector));
}
template <typename Lanes>
HWY_NOINLINE hn::TFromD<Lanes> largest_lane(hn::Vec<Lanes> vector) {
  return hn::GetLane(hn::MaxOfLanes(Lanes(), vector));
}

// Extremes of a chunk's codes, from which the extremes of its values follow. As a signed integer, a
// code with a clear sign bit is its magnitude and larger than every code with the sign bit set. As
// an unsigned integer, the largest code is the negative number of the largest magnitude.
template <typename Format>
struct CodeExtremes {
  using Unsigned = typename Format::Bits;
  using Signed = std::make_signed_t<Unsigned>;

  static constexpr Signed kNoSigned = std::numeric_limits<Signed>::min();  // the code of -0
  static constexpr Unsigned kZeroLessOne = std::numeric_limits<Unsigned>::max();

  Signed largest_signed = kNoSigned;
  Unsigned largest_unsigned = 0;
  // The smallest of the magnitudes minus one: zero wraps around and becomes the largest.
  Unsigned smallest_less_one = kZeroLessOne;
  Unsigned largest_less_one = 0;

  bool has_zero() const { return largest_less_one == kZeroLessOne; }

  // The magnitude of the largest element; above kTopExponentCode if it is NaN.
  std::uint32_t amax() const {
    const Unsigned positive = largest_signed > 0 ? static_cast<Unsigned>(largest_signed) : 0;
    const Unsigned negative =
        largest_unsigned & Format::kSignMask ? largest_unsigned & Format::kMagnitudeMask : 0;
    return std::max(positive, negative);
  }

  // The magnitude of the smallest nonzero element; above kMagnitudeMask if there is none.
  std::uint64_t smallest_nonzero() const { return smallest_less_one + std::uint64_t{1}; }

  // The codes of the smallest and the largest value. A zero has a clear sign bit.
  Unsigned min() const {
    if (largest_unsigned > Format::kSignMask) return largest_unsigned;  // a number below -0
    return has_zero() ? 0 : static_cast<Unsigned>(smallest_nonzero());
  }
  Unsigned max() const {
    if (largest_signed >= 0) return static_cast<Unsigned>(largest_signed);
    return has_zero() ? 0 : static_cast<Unsigned>(smallest_nonzero() | Format::kSignMask);
  }
};

// size: a multiple of the lanes. `numbers_only`: NaNs are ignored.
template <typename Format, bool numbers_only>
HWY_NOINLINE CodeExtremes<Format> find_extremes(const typename Format::Bits* HWY_RESTRICT codes,
                                                std::size_t size) {
  using Extremes = CodeExtremes<Format>;
  const Unsigneds<Format> unsigneds;
  const Signeds<Format> signeds;
  const auto magnitude_mask = hn::Set(unsigneds, Format::kMagnitudeMask);
  const auto one = hn::Set(unsigneds, 1);
  const auto infinity = hn::Set(signeds, Format::kTopExponentCode);
  const auto no_signed = hn::Set(signeds, Extremes::kNoSigned);

  auto largest_signed = no_signed;
  auto largest_unsigned = hn::Zero(unsigneds);
  auto smallest_less_one = hn::Set(unsigneds, Extremes::kZeroLessOne);
  auto largest_less_one = hn::Zero(unsigneds);
  for (std::size_t i = 0; i < size; i += hn::Lanes(unsigneds)) {
    auto code = hn::LoadU(unsigneds, codes + i);
    const auto magnitude = hn::And(code, magnitude_mask);
    auto signed_code = hn::BitCast(signeds, code);
    if constexpr (numbers_only) {
      const auto is_nan = hn::Gt(hn::BitCast(signeds, magnitude), infinity);
      signed_code = hn::IfThenElse(is_nan, no_signed, signed_code);
      code = hn::BitCast(unsigneds, signed_code);
      code = hn::IfThenZeroElse(hn::RebindMask(unsigneds, is_nan), code);
    }
    // A NaN has the largest magnitude, so it cannot hide the smallest one.
    const auto less_one = hn::Sub(magnitude, one);
    largest_signed = hn::Max(largest_signed, signed_code);
    largest_unsigned = hn::Max(largest_unsigned, code);
    smallest_less_one = hn::Min(smallest_less_one, less_one);
    largest_less_one = hn::Max(largest_less_one, less_one);
  }
  return {largest_lane<Signeds<Format>>(largest_signed),
          largest_lane<Unsigneds<Format>>(largest_unsigned),
          smallest_lane<Unsigneds<Format>>(smallest_less_one),
          largest_lane<Unsigneds<Format>>(largest_less_one)};
}

// Lanes count up to kStatisticsChunk, which fits 16 bits.
template <typename Format>
HWY_NOINLINE std::int64_t sum_of_counts(hn::Vec<Unsigneds<Format>> counts) {
  const hn::ScalableTag<std::uint32_t> words;
  const auto pairs = hn::BitCast(words, counts);
  if constexpr (sizeof(typename Format::Bits) == 4) {
    return hn::GetLane(hn::SumOfLanes(words, pairs));
  } else {
    const auto even = hn::And(pairs, hn::Set(words, 0xffff));
    return hn::GetLane(hn::SumOfLanes(words, hn::Add(even, hn::ShiftRight<16>(pairs))));
  }
}

// Counts elements whose magnitude is at least `first` (1 to kTopExponentCode + 1), including NaNs.
template <typename Format>
HWY_NOINLINE std::int64_t count_from(const typename Format::Bits* HWY_RESTRICT codes,
                                     std::size_t size, std::uint32_t first) {
  const Unsigneds<Format> unsigneds;
  const Signeds<Format> signeds;
  const auto magnitude_mask = hn::Set(unsigneds, Format::kMagnitudeMask);
  const auto below = hn::Set(signeds, static_cast<hn::TFromD<Signeds<Format>>>(first - 1));
  auto count = hn::Zero(signeds);
  for (std::size_t i = 0; i < size; i += hn::Lanes(unsigneds)) {
    const auto magnitude = hn::And(hn::LoadU(unsigneds, codes + i), magnitude_mask);
    const auto reaches = hn::Gt(hn::BitCast(signeds, magnitude), below);
    count = hn::Sub(count, hn::VecFromMask(signeds, reaches));
  }
  return sum_of_counts<Format>(hn::BitCast(unsigneds, count));
}

// Counts elements with exactly this code.
template <typename Format>
HWY_NOINLINE std::int64_t count_equal(const typename Format::Bits* HWY_RESTRICT codes,
                                      std::size_t size, typename Format::Bits code) {
  const Unsigneds<Format> unsigneds;
  const Signeds<Format> signeds;
  const auto wanted = hn::Set(unsigneds, code);
  auto count = hn::Zero(signeds);
  for (std::size_t i = 0; i < size; i += hn::Lanes(unsigneds)) {
    const auto equal = hn::Eq(hn::LoadU(unsigneds, codes + i), wanted);
    count = hn::Sub(count, hn::BitCast(signeds, hn::VecFromMask(unsigneds, equal)));
  }
  return sum_of_counts<Format>(hn::BitCast(unsigneds, count));
}

}  // namespace telens::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the include guard of this target
