#include "core/kernels/cpu/statistics/statistics_ranges.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/statistics/statistics_block_cast_range.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "core/formats/dispatch.h"
#include "core/kernels/cpu/element_type.h"
#include "core/kernels/cpu/statistics/statistics_block_cast-inl.h"

HWY_BEFORE_NAMESPACE();
namespace telens::HWY_NAMESPACE {
namespace {

using kernels::BlockCastElements;

// Lanes after the last element are zero in all three arrays and do not change any result.
template <typename Format, typename T, typename At>
HWY_INLINE void add_vector(const At& at, const T* x, const BlockCastElements& elements,
                           Lanes& lanes, CastSums& sums) {
  const auto before = at(x);
  const auto after = at(elements.decoded);
  const auto magnitude = hn::Abs(before);
  const auto zero = hn::Zero(kFloats);

  // A NaN is not counted as zero, neither before nor after the cast.
  const auto vanished = hn::AndNot(hn::Eq(before, zero), hn::Eq(after, zero));
  count(vanished, lanes.underflows);
  add_squared(hn::Sub(after, before), lanes);

  count_beyond<Format>(magnitude, at(elements.scales), sums);
}

template <typename Format, typename T>
void add_piece(const BlockCastElements& elements, std::int64_t begin, std::int64_t end,
               CastSums& sums) {
  const T* const x = static_cast<const T*>(elements.x);
  const auto stride = static_cast<std::int64_t>(hn::Lanes(kFloats));
  Lanes lanes = no_lanes();
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

}  // namespace telens::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace telens {
HWY_EXPORT(add_block_cast);

namespace kernels {

void add_block_cast(const BlockCastElements& elements, FormatId element, CastSums& sums) {
  HWY_DYNAMIC_DISPATCH(telens::add_block_cast)(elements, element, sums);
}

}  // namespace kernels
}  // namespace telens
#endif
