#include "core/kernels/cpu/statistics/statistics_ranges.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/statistics/central_moments_range.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/formats/convert.h"
#include "core/formats/dispatch.h"
#include "core/kernels/cpu/statistics/statistics_sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace telens::HWY_NAMESPACE {
namespace {

// Number and sum of a chunk's finite elements. The count is exact: each FP32 lane stays below 2^24.
struct FiniteSum {
  std::int64_t count = 0;
  double sum = 0;
};

template <typename Format>
HWY_NOINLINE FiniteSum sum_finite(const typename Format::Bits* HWY_RESTRICT codes,
                                  std::size_t size) {
  const auto one = hn::Set(Float32s(), 1.0F);
  auto count0 = hn::Zero(Float32s()), count1 = count0;
  auto sum0 = hn::Zero(Doubles()), sum1 = sum0;
  for (std::size_t i = 0; i < size; i += pair_lanes()) {
    const auto [even, odd] = load_pair<Format>(codes + i);
    count0 = hn::Add(count0, hn::IfThenElseZero(hn::IsFinite(even), one));
    count1 = hn::Add(count1, hn::IfThenElseZero(hn::IsFinite(odd), one));
    const auto a = zero_unless_finite(even);
    const auto b = zero_unless_finite(odd);
    sum0 = hn::Add(sum0, hn::Add(lower_doubles(a), upper_doubles(a)));
    sum1 = hn::Add(sum1, hn::Add(lower_doubles(b), upper_doubles(b)));
  }
  return {static_cast<std::int64_t>(sum_lanes(count0, count1)), sum_lanes(sum0, sum1)};
}

template <typename Format>
HWY_NOINLINE CenteredSums centered_sums(const typename Format::Bits* HWY_RESTRICT codes,
                                        std::size_t size, double center) {
  const auto centers = hn::Set(Doubles(), center);
  const auto one = hn::Set(Float32s(), 1.0F);
  auto first = hn::Zero(Doubles()), second = first, third = first, fourth = first;
  const auto add = [&](DoubleVector count, DoubleVector x) HWY_ATTR {
    const auto distance = hn::NegMulAdd(centers, count, x);
    const auto square = hn::Mul(distance, distance);
    first = hn::Add(first, distance);
    second = hn::Add(second, square);
    third = hn::MulAdd(square, distance, third);
    fourth = hn::MulAdd(square, square, fourth);
  };
  for (std::size_t i = 0; i < size; i += pair_lanes()) {
    const auto pair = load_pair<Format>(codes + i);
    for (const auto values : {pair.even, pair.odd}) {
      const auto counts = hn::IfThenElseZero(hn::IsFinite(values), one);
      const auto x = zero_unless_finite(values);
      add(lower_doubles(counts), lower_doubles(x));
      add(upper_doubles(counts), upper_doubles(x));
    }
  }
  const auto none = hn::Zero(Doubles());
  return {sum_lanes(first, none), sum_lanes(second, none), sum_lanes(third, none),
          sum_lanes(fourth, none)};
}

// Reads a chunk twice; the chunk stays in the first-level cache.
template <typename Format>
CentralMoments chunk_moments(const typename Format::Bits* codes, std::size_t size) {
  const FiniteSum finite = sum_finite<Format>(codes, size);
  if (finite.count == 0) return {};
  const double center = finite.sum / static_cast<double>(finite.count);
  return moments_around(center, finite.count, centered_sums<Format>(codes, size, center));
}

template <typename Format>
void add_moments(const typename Format::Bits* codes, std::size_t size, CentralMoments& moments) {
  const std::size_t whole = size - size % pair_lanes();
  for (std::size_t begin = 0; begin < whole; begin += kStatisticsChunk) {
    const std::size_t end = std::min<std::size_t>(whole, begin + kStatisticsChunk);
    merge(moments, chunk_moments<Format>(codes + begin, end - begin));
  }
  for (std::size_t i = whole; i < size; ++i) {
    const double x = decode<Format>(codes[i]);
    if (std::isfinite(x)) merge(moments, {1, x, 0, 0, 0});
  }
}

}  // namespace

void add_central_moments(FormatId input, const void* x, std::size_t size, CentralMoments& moments) {
  dispatch_high_precision_format(input, "central moments", [&]<typename Format>() {
    add_moments<Format>(static_cast<const typename Format::Bits*>(x), size, moments);
  });
}

}  // namespace telens::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace telens {
HWY_EXPORT(add_central_moments);

namespace kernels {

void add_central_moments(FormatId input, const void* x, std::size_t size, CentralMoments& moments) {
  HWY_DYNAMIC_DISPATCH(telens::add_central_moments)(input, x, size, moments);
}

}  // namespace kernels
}  // namespace telens
#endif
