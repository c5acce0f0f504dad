#include "core/kernels/cpu/statistics/statistics_ranges.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/statistics/statistics_what_if_range.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>

#include "core/formats/dispatch.h"
#include "core/kernels/cpu/element_type.h"
#include "core/kernels/cpu/statistics/statistics_block_cast-inl.h"

HWY_BEFORE_NAMESPACE();
namespace telens::HWY_NAMESPACE {
namespace {

using kernels::UncastElements;

static_assert(hn::MaxLanes(kFloats) <= 16, "a vector is within one block");

// decode<Format>(encode<Format>(value, saturating)) of magnitudes, except that a NaN stays a NaN. A
// magnitude in [2^e, 2^(e+1)) plus 2^(e + 23 - M) keeps exactly M bits of mantissa, as in Format.
// Below the smallest normal, e stays the exponent of the smallest normal.
template <typename Format>
HWY_INLINE FloatVec rounded_to(FloatVec magnitude) {
  const hn::RebindToUnsigned<Floats> words;
  constexpr std::uint32_t kMagicOffset = (FP32::kMantissaBits - Format::kMantissaBits)
                                         << FP32::kMantissaBits;
  constexpr auto kSmallestNormal = bits_as<std::uint32_t>(Format::kSmallestNormal);
  const auto largest = hn::Set(kFloats, Format::kMax);
  const auto value = hn::IfThenElse(hn::Gt(magnitude, largest), largest, magnitude);
  const auto power =
      hn::Max(hn::And(hn::BitCast(words, value), hn::Set(words, FP32::kTopExponentCode)),
              hn::Set(words, kSmallestNormal));
  const auto magic = hn::BitCast(kFloats, hn::Add(power, hn::Set(words, kMagicOffset)));
  return hn::Sub(hn::Add(value, magic), magic);
}

// One factor per block.
struct OfBlocks {
  std::size_t shift;  // log2 of the block size

  HWY_INLINE FloatVec operator()(const float* of_blocks, std::int64_t position) const {
    return hn::Set(kFloats, of_blocks[static_cast<std::size_t>(position) >> shift]);
  }
};

// One factor per element.
struct OfElements {
  HWY_INLINE FloatVec operator()(const float* of_elements, std::int64_t position) const {
    return load(of_elements + position);
  }
};

// In lanes after the last element x is 0, and `factor` and `scale` are unspecified. They do not
// change any result unless one of them is NaN.
template <typename Format>
HWY_INLINE void add_vector(FloatVec x, FloatVec factor, FloatVec scale, Lanes& lanes,
                           CastSums& sums) {
  const auto magnitude = hn::Abs(x);
  const auto zero = hn::Zero(kFloats);
  const auto scaled = hn::Mul(magnitude, factor);
  const auto after = hn::Mul(rounded_to<Format>(scaled), scale);
  count(hn::And(hn::Ne(magnitude, zero), hn::Eq(after, zero)), lanes.underflows);
  add_squared(hn::Sub(after, magnitude), lanes);

  count_beyond<Format>(magnitude, scale, sums);
}

template <typename Format, typename T, typename At>
void add_piece(const UncastElements& elements, const At& at, std::int64_t begin, std::int64_t end,
               CastSums& sums) {
  const T* const x = static_cast<const T*>(elements.x);
  const auto stride = static_cast<std::int64_t>(hn::Lanes(kFloats));
  Lanes lanes = no_lanes();
  std::int64_t i = begin;
  for (; i + stride <= end; i += stride) {
    add_vector<Format>(load(x + i), at(elements.factors, i), at(elements.scales, i), lanes, sums);
  }
  if (i < end) {
    const LastLanes rest{i, static_cast<std::size_t>(end - i)};
    if constexpr (std::is_same_v<At, OfElements>) {
      add_vector<Format>(rest(x), rest(elements.factors), rest(elements.scales), lanes, sums);
    } else {
      // A NaN scale would turn the lanes after the last element into NaN.
      const auto within = hn::FirstN(kFloats, rest.count);
      add_vector<Format>(rest(x), hn::IfThenElseZero(within, at(elements.factors, i)),
                         hn::IfThenElseZero(within, at(elements.scales, i)), lanes, sums);
    }
  }
  add_lanes(lanes, sums);
}

template <typename Format, typename T>
void add_pieces(const UncastElements& elements, CastSums& sums) {
  const auto size = static_cast<std::int64_t>(elements.size);
  for (std::int64_t begin = 0; begin < size; begin += kPiece) {
    const std::int64_t end = std::min(size, begin + kPiece);
    if (elements.block == 1) {
      add_piece<Format, T>(elements, OfElements(), begin, end, sums);
    } else {
      const OfBlocks at{static_cast<std::size_t>(std::countr_zero(elements.block))};
      add_piece<Format, T>(elements, at, begin, end, sums);
    }
  }
}

}  // namespace

void add_what_if_cast(const UncastElements& elements, FormatId element, CastSums& sums) {
  sums.numel += static_cast<std::int64_t>(elements.size);
  dispatch_element_format(element, "what_if_statistics", [&]<typename Format>() {
    dispatch_element_type(elements.input,
                          [&]<typename T>() { add_pieces<Format, T>(elements, sums); });
  });
}

}  // namespace telens::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace telens {
HWY_EXPORT(add_what_if_cast);

namespace kernels {

void add_what_if_cast(const UncastElements& elements, FormatId element, CastSums& sums) {
  HWY_DYNAMIC_DISPATCH(telens::add_what_if_cast)(elements, element, sums);
}

}  // namespace kernels
}  // namespace telens
#endif
