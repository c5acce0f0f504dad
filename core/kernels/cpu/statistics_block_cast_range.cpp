#include "core/kernels/cpu/statistics_block_cast_range.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/statistics_block_cast_range.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "core/formats/convert.h"
#include "core/formats/dispatch.h"
#include "core/kernels/cpu/element_type.h"
#include "core/kernels/cpu/float_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace telens::HWY_NAMESPACE {
namespace {

using kernels::BlockCastElements;

using Doubles = hn::ScalableTag<double>;
using DoubleVec = hn::Vec<Doubles>;
using Counts = hn::RebindToSigned<Floats>;
using CountVec = hn::Vec<Counts>;

// Elements whose underflows 32-bit lanes count before they are added up.
constexpr std::int64_t kPiece = 1 << 20;

// The smallest FP32 value that rounds to more than the largest one of Format: as E2M1 has neither
// infinity nor NaN, there it is what rounds to 8 were there an 8.
template <typename Format>
constexpr float first_clipped() {
  std::uint32_t first = 0;
  std::uint32_t last = FP32::kTopExponentCode;
  while (first < last) {
    const std::uint32_t middle = first + (last - first) / 2;
    if (detail::unbounded_code<Format>(middle) > Format::kMaxCode) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return bits_as<float>(first);
}

// What a loop over elements adds up, in registers. No initializers: they would make a constructor,
// which is not compiled for the SIMD target.
struct Lanes {
  DoubleVec lower_error;
  DoubleVec upper_error;
  CountVec underflows;
};

// A function of its own: GCC 12 keeps the accumulators of a loop on the stack when the same
// function stores them.
HWY_NOINLINE void add_lanes(const Lanes& lanes, CastSums& sums) {
  const Doubles doubles;
  const auto error = hn::Add(lanes.lower_error, lanes.upper_error);
  sums.squared_error += hn::GetLane(hn::SumOfLanes(doubles, error));
  std::int32_t counts[hn::MaxLanes(kFloats)];
  hn::StoreU(lanes.underflows, Counts(), counts);
  for (std::size_t i = 0; i < hn::Lanes(kFloats); ++i) sums.underflows += counts[i];
}

// Elements at the edge of their block's range or beyond: few, so the division costs nothing.
template <typename Format>
HWY_NOINLINE void count_beyond(FloatVec magnitude, FloatVec scale, FloatVec limit, CastSums& sums) {
  const auto at_edge = hn::Ge(magnitude, limit);  // false where the scale is a NaN
  const auto factor = hn::Min(hn::Div(hn::Set(kFloats, 1), scale), hn::Set(kFloats, FP32::kMax));
  const auto clipped =
      hn::Ge(hn::Mul(magnitude, factor), hn::Set(kFloats, first_clipped<Format>()));
  sums.overflows += static_cast<std::int64_t>(hn::CountTrue(kFloats, hn::Gt(magnitude, limit)));
  sums.saturated += static_cast<std::int64_t>(hn::CountTrue(kFloats, hn::And(at_edge, clipped)));
}

// Lanes behind the last element are zeros in all three arrays, which count for nothing.
template <typename Format, typename T, typename At>
HWY_INLINE void add_vector(const At& at, const T* x, const BlockCastElements& elements,
                           Lanes& lanes, CastSums& sums) {
  const auto before = at(x);
  const auto after = at(elements.decoded);
  const auto magnitude = hn::Abs(before);
  const auto zero = hn::Zero(kFloats);

  // A NaN is not zero, before and after.
  const auto vanished = hn::AndNot(hn::Eq(before, zero), hn::Eq(after, zero));
  lanes.underflows =
      hn::Sub(lanes.underflows, hn::VecFromMask(Counts(), hn::RebindMask(Counts(), vanished)));

  const auto error = hn::Sub(after, before);
  const hn::Half<Floats> half;
  const auto lower = hn::PromoteTo(Doubles(), hn::LowerHalf(half, error));
  const auto upper = hn::PromoteTo(Doubles(), hn::UpperHalf(half, error));
  lanes.lower_error = hn::MulAdd(lower, lower, lanes.lower_error);
  lanes.upper_error = hn::MulAdd(upper, upper, lanes.upper_error);

  const auto scale = at(elements.scales);
  const auto limit = hn::Mul(scale, hn::Set(kFloats, Format::kMax));
  const auto at_edge = hn::And(hn::Ge(magnitude, limit), hn::Gt(magnitude, zero));
  if (HWY_UNLIKELY(!hn::AllFalse(kFloats, at_edge))) {
    count_beyond<Format>(magnitude, scale, limit, sums);
  }
}

template <typename Format, typename T>
void add_piece(const BlockCastElements& elements, std::int64_t begin, std::int64_t end,
               CastSums& sums) {
  const T* const x = static_cast<const T*>(elements.x);
  const auto stride = static_cast<std::int64_t>(hn::Lanes(kFloats));
  Lanes lanes{hn::Zero(Doubles()), hn::Zero(Doubles()), hn::Zero(Counts())};
  std::int64_t i = begin;
  for (; i + stride <= end; i += stride) {
    add_vector<Format>(FullLanes{i}, x, elements, lanes, sums);
  }
  if (i < end) {
    const LastLanes rest{i, static_cast<std::size_t>(end - i)};
    add_vector<Format>(rest, x, elements, lanes, sums);
  }
  add_lanes(lanes, sums);
}

}  // namespace

void add_block_cast(const BlockCastElements& elements, FormatId element, CastSums& sums) {
  const auto size = static_cast<std::int64_t>(elements.size);
  sums.numel += size;
  dispatch_element_format(element, "block_cast_statistics", [&]<typename Format>() {
    dispatch_element_type(elements.input, [&]<typename T>() {
      for (std::int64_t begin = 0; begin < size; begin += kPiece) {
        add_piece<Format, T>(elements, begin, std::min(size, begin + kPiece), sums);
      }
    });
  });
}

void add_each_block_cast(const BlockCastElements& elements, FormatId element, std::size_t length,
                         CastSums* blocks) {
  const auto size = static_cast<std::int64_t>(elements.size);
  const auto step = static_cast<std::int64_t>(length);
  dispatch_element_format(element, "block_cast_errors", [&]<typename Format>() {
    dispatch_element_type(elements.input, [&]<typename T>() {
      for (std::int64_t begin = 0; begin < size; begin += step) {
        const std::int64_t end = std::min(size, begin + step);
        CastSums& sums = blocks[begin / step];
        sums.numel += end - begin;
        add_piece<Format, T>(elements, begin, end, sums);
      }
    });
  });
}

}  // namespace telens::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace telens {
HWY_EXPORT(add_block_cast);
HWY_EXPORT(add_each_block_cast);

namespace kernels {

void add_block_cast(const BlockCastElements& elements, FormatId element, CastSums& sums) {
  HWY_DYNAMIC_DISPATCH(telens::add_block_cast)(elements, element, sums);
}

void add_each_block_cast(const BlockCastElements& elements, FormatId element, std::size_t length,
                         CastSums* blocks) {
  HWY_DYNAMIC_DISPATCH(telens::add_each_block_cast)(elements, element, length, blocks);
}

}  // namespace kernels
}  // namespace telens
#endif
