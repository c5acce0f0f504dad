#include "core/kernels/cpu/statistics/statistics_ranges.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/statistics/block_errors_range.cpp"
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

using Mask = hn::Mask<Floats>;

// A vector of elements before and after the cast. Lanes after the last element are zero in all
// members and do not change any result.
struct Cast {
  FloatVec before;
  FloatVec after;
  FloatVec scale;

  HWY_INLINE Mask is_zero() const { return hn::Eq(before, hn::Zero(kFloats)); }
  HWY_INLINE Mask vanished() const {
    return hn::AndNot(is_zero(), hn::Eq(after, hn::Zero(kFloats)));
  }
};

template <typename T, typename At>
HWY_INLINE Cast load_cast(const At& at, const T* x, const BlockCastElements& elements) {
  return {at(x), at(elements.decoded), at(elements.scales)};
}

// ---- blocks of neighbors

struct BlockLanes {
  Lanes lanes;
  Mask all_zero;
};

template <typename Format>
HWY_INLINE void add_cast(const Cast& cast, BlockLanes& block, std::int64_t& saturated) {
  block.all_zero = hn::And(block.all_zero, cast.is_zero());
  count(cast.vanished(), block.lanes.underflows);
  add_squared(hn::Sub(cast.after, cast.before), block.lanes);
  count_saturated<Format>(hn::Abs(cast.before), cast.scale, saturated);
}

template <typename Format, typename T>
HWY_INLINE void add_block(const BlockCastElements& elements, std::int64_t begin, std::int64_t end,
                          BlockErrors& block) {
  const T* const x = static_cast<const T*>(elements.x);
  const auto stride = static_cast<std::int64_t>(hn::Lanes(kFloats));
  const auto zero = hn::Zero(kFloats);
  BlockLanes sums{no_lanes(), hn::Eq(zero, zero)};
  std::int64_t saturated = 0;
  std::int64_t i = begin;
  for (; i + stride <= end; i += stride) {
    add_cast<Format>(load_cast(FullLanes{i}, x, elements), sums, saturated);
  }
  if (i < end) {
    const LastLanes rest{i, static_cast<std::size_t>(end - i)};
    add_cast<Format>(load_cast(rest, x, elements), sums, saturated);
  }
  block.elements += static_cast<std::int32_t>(end - begin);
  block.nonzero |= hn::AllTrue(kFloats, sums.all_zero) ? 0 : 1;
  block.underflows += hn::GetLane(hn::SumOfLanes(Counts(), sums.lanes.underflows));
  block.saturated += static_cast<std::int32_t>(saturated);
  block.squared_error += compute_squared_error(sums.lanes);
}

// ---- blocks down the columns

struct ColumnSums {
  double* squared_errors;
  std::int32_t* nonzero;
  std::int32_t* underflows;
  std::int32_t* saturated;
};

HWY_INLINE void count_lanes(Mask mask, std::int32_t* counts) {
  auto lanes = hn::LoadU(Counts(), counts);
  count(mask, lanes);
  hn::StoreU(lanes, Counts(), counts);
}

template <typename Format>
HWY_INLINE void add_columns(const Cast& cast, std::int64_t i, const ColumnSums& sums) {
  const auto doubles = static_cast<std::int64_t>(hn::Lanes(Doubles()));
  double* const errors = sums.squared_errors + i;
  Lanes lanes{hn::LoadU(Doubles(), errors), hn::LoadU(Doubles(), errors + doubles),
              hn::LoadU(Counts(), sums.underflows + i)};
  add_squared(hn::Sub(cast.after, cast.before), lanes);
  count(cast.vanished(), lanes.underflows);
  hn::StoreU(lanes.lower_error, Doubles(), errors);
  hn::StoreU(lanes.upper_error, Doubles(), errors + doubles);
  hn::StoreU(lanes.underflows, Counts(), sums.underflows + i);
  count_lanes(hn::Not(cast.is_zero()), sums.nonzero + i);
  const auto magnitude = hn::Abs(cast.before);
  if (HWY_UNLIKELY(any_reaches(magnitude, cast.scale, kNearlyClipped<Format>))) {
    count_lanes(clipped<Format>(magnitude, cast.scale), sums.saturated + i);
  }
}

template <typename Format, typename T>
void add_row(const BlockCastElements& row, const ColumnSums& sums) {
  const T* const x = static_cast<const T*>(row.x);
  const auto size = static_cast<std::int64_t>(row.size);
  const auto stride = static_cast<std::int64_t>(hn::Lanes(kFloats));
  std::int64_t i = 0;
  for (; i + stride <= size; i += stride) {
    add_columns<Format>(load_cast(FullLanes{i}, x, row), i, sums);
  }
  if (i < size) {
    const LastLanes rest{i, static_cast<std::size_t>(size - i)};
    add_columns<Format>(load_cast(rest, x, row), i, sums);
  }
}

// ---- two copies

struct DifferenceLanes {
  DoubleVec lower;
  DoubleVec upper;
  std::int64_t different;
};

HWY_INLINE Mask differ(FloatVec a, FloatVec b) {
  const auto both_nan = hn::And(hn::IsNaN(a), hn::IsNaN(b));
  return hn::Not(hn::Or(hn::Eq(a, b), both_nan));
}

HWY_INLINE void add_pair(FloatVec a, FloatVec b, DifferenceLanes& lanes) {
  const auto different = differ(a, b);
  if (hn::AllFalse(kFloats, different)) return;
  lanes.different += static_cast<std::int64_t>(hn::CountTrue(kFloats, different));
  const auto left = hn::Abs(a), right = hn::Abs(b);
  const auto largest = hn::IfThenElse(hn::Gt(left, right), left, right);
  const auto relative = hn::IfThenElseZero(different, hn::Div(hn::Abs(hn::Sub(a, b)), largest));
  const hn::Half<Floats> half;
  lanes.lower = hn::Add(lanes.lower, hn::PromoteTo(Doubles(), hn::LowerHalf(half, relative)));
  lanes.upper = hn::Add(lanes.upper, hn::PromoteTo(Doubles(), hn::UpperHalf(half, relative)));
}

}  // namespace

void add_block_errors(const BlockCastElements& elements, FormatId element, std::size_t length,
                      BlockErrors* blocks) {
  const auto size = static_cast<std::int64_t>(elements.size);
  const auto step = static_cast<std::int64_t>(length);
  dispatch_element_format(element, "block_cast_errors", [&]<typename Format>() {
    dispatch_element_type(elements.input, [&]<typename T>() {
      for (std::int64_t begin = 0; begin < size; begin += step) {
        add_block<Format, T>(elements, begin, std::min(size, begin + step), *blocks++);
      }
    });
  });
}

void add_column_errors(const BlockCastElements& row, FormatId element, double* squared_errors,
                       std::int32_t* nonzero, std::int32_t* underflows, std::int32_t* saturated) {
  const ColumnSums sums{squared_errors, nonzero, underflows, saturated};
  dispatch_element_format(element, "block_cast_errors", [&]<typename Format>() {
    dispatch_element_type(row.input, [&]<typename T>() { add_row<Format, T>(row, sums); });
  });
}

void add_difference(const float* a, const float* b, std::size_t size, CopiesDifference& sums) {
  const auto count = static_cast<std::int64_t>(size);
  const auto stride = static_cast<std::int64_t>(hn::Lanes(kFloats));
  DifferenceLanes lanes{hn::Zero(Doubles()), hn::Zero(Doubles()), 0};
  std::int64_t i = 0;
  for (; i + stride <= count; i += stride) add_pair(load(a + i), load(b + i), lanes);
  if (i < count) {
    const LastLanes rest{i, static_cast<std::size_t>(count - i)};
    add_pair(rest(a), rest(b), lanes);
  }
  sums.elements += count;
  sums.different += lanes.different;
  sums.relative += hn::GetLane(hn::SumOfLanes(Doubles(), hn::Add(lanes.lower, lanes.upper)));
}

}  // namespace telens::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace telens {
HWY_EXPORT(add_block_errors);
HWY_EXPORT(add_column_errors);
HWY_EXPORT(add_difference);

namespace kernels {

void add_block_errors(const BlockCastElements& elements, FormatId element, std::size_t length,
                      BlockErrors* blocks) {
  HWY_DYNAMIC_DISPATCH(telens::add_block_errors)(elements, element, length, blocks);
}

ColumnErrors::ColumnErrors(std::size_t columns) {
  constexpr std::size_t kLongestVector = 16;  // counted in FP32 lanes
  const std::size_t size = (columns + kLongestVector - 1) / kLongestVector * kLongestVector;
  squared_errors_.resize(size);
  for (auto* counts : {&nonzero_, &underflows_, &saturated_}) counts->resize(size);
}

void ColumnErrors::add(const BlockCastElements& row, FormatId element) {
  ++rows_;
  HWY_DYNAMIC_DISPATCH(telens::add_column_errors)
  (row, element, squared_errors_.data(), nonzero_.data(), underflows_.data(), saturated_.data());
}

BlockErrors ColumnErrors::of(std::size_t column) const {
  return {rows_, nonzero_[column] != 0 ? 1 : 0, underflows_[column], saturated_[column],
          squared_errors_[column]};
}

void add_difference(const float* a, const float* b, std::size_t size, CopiesDifference& sums) {
  HWY_DYNAMIC_DISPATCH(telens::add_difference)(a, b, size, sums);
}

}  // namespace kernels
}  // namespace telens
#endif
