#include "core/kernels/cpu/statistics/statistics_ranges.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/cpu/statistics/statistics_range.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/formats/convert.h"
#include "core/formats/dispatch.h"
#include "core/kernels/cpu/statistics/statistics_codes-inl.h"
#include "core/kernels/cpu/statistics/statistics_sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace telens::HWY_NAMESPACE {
namespace {

using kernels::CastPlan;

// Squared errors of casting a chunk to an FP8 format and back.

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

// Sums of a chunk.

// Range of magnitudes for which sums of kStatisticsChunk squares in FP32 do not overflow (2^13 *
// 2^112 < 2^127) and lose at most 2^-150 per square to underflow, 2^-37 of the largest.
constexpr float kLargestForFp32 = 0x1p56F;
constexpr float kSmallestForFp32 = 0x1p-50F;

// If less of the squares remains, rounding errors of FP32 sums would affect the variance.
constexpr double kCancelledForFp32 = 1.0 / 16;

template <typename Format>
std::uint32_t get_magnitude(float value) {
  return encode<Format>(value, Saturation::saturating);
}

// Computes counters and extremes of `part` from the codes. Returns the magnitude of amax.
template <typename Format>
std::uint32_t scan_codes(const typename Format::Bits* codes, std::size_t size, TensorSums& part) {
  constexpr std::uint32_t kFirstNan = Format::kTopExponentCode + 1U;
  auto extremes = find_extremes<Format, false>(codes, size);
  if (extremes.amax() >= kFirstNan) {
    part.nan = count_from<Format>(codes, size, kFirstNan);
    if (part.nan == part.numel) return 0;
    extremes = find_extremes<Format, true>(codes, size);
  }
  const std::uint32_t amax = extremes.amax();
  if (amax == Format::kTopExponentCode) {
    part.posinf = count_equal<Format>(codes, size, Format::kTopExponentCode);
    part.neginf = count_equal<Format>(codes, size, Format::kTopExponentCode | Format::kSignMask);
  }
  if (extremes.has_zero()) part.zeros = part.numel - count_from<Format>(codes, size, 1);
  if (amax > 0) {
    const auto smallest = extremes.smallest_nonzero();
    part.smallest_nonzero = decode<Format>(static_cast<typename Format::Bits>(smallest));
    if (smallest < Format::kSmallestNormalCode) {
      const auto normal = count_from<Format>(codes, size, Format::kSmallestNormalCode);
      part.subnormals = part.numel - part.zeros - normal;
    }
  }
  part.min = decode<Format>(extremes.min());
  part.max = decode<Format>(extremes.max());
  return amax;
}

template <typename Format>
ChunkSums sum_chunk(const typename Format::Bits* codes, std::size_t size, std::uint32_t amax,
                    const TensorSums& part) {
  const auto finite = static_cast<double>(finite_count(part));
  if (amax == 0) return {};
  const bool fits_fp32 = finite_count(part) == part.numel &&
                         amax <= get_magnitude<Format>(kLargestForFp32) &&
                         amax >= get_magnitude<Format>(kSmallestForFp32);
  if (fits_fp32) {
    const ChunkSums sums = sum_chunk_fp32<Format>(codes, size);
    if (sums.m2 >= kCancelledForFp32 * sums.squares) return sums;
  }
  return sum_chunk_double<Format>(codes, size, finite);
}

// Returns true if squared errors with the FP32 sum `sum` are accurate: no overflow, and a
// negligible loss from underflow, or nothing small enough to underflow.
bool errors_fit_fp32(double sum, const TensorSums& part) {
  constexpr double kNoticeable = 0x1p-110;        // 2^13 lost parts of 2^-150 are 2^-27 of it
  constexpr double kSmallestForErrors = 0x1p-40;  // an error is at least 2^-24 of it, or zero
  const double amax = larger(-part.min, part.max);
  return amax <= kLargestForFp32 &&
         !(sum < kNoticeable && part.smallest_nonzero < kSmallestForErrors);
}

template <typename Format, typename Target>
double compute_squared_error(const typename Format::Bits* codes, std::size_t size,
                             const CastPlan& plan, const TensorSums& part) {
  // An element that saturates, or stays a NaN, has the error of IEEE arithmetic.
  if (part.nan > 0) return std::numeric_limits<double>::quiet_NaN();
  if (part.posinf + part.neginf > 0) return std::numeric_limits<double>::infinity();
  const double sum = squared_error<Format, Target, false>(codes, size, plan);
  if (errors_fit_fp32(sum, part)) return sum;
  return squared_error<Format, Target, true>(codes, size, plan);
}

template <typename Format>
CastSums cast_chunk(const typename Format::Bits* codes, std::size_t size, const CastPlan& plan,
                    std::uint32_t amax, const TensorSums& part) {
  CastSums sums;
  sums.numel = part.numel;
  sums.scale_inv_min = sums.scale_inv_max = plan.scale_inv;
  if (part.smallest_nonzero < decode<Format>(plan.first_nonzero)) {
    const auto remaining = count_from<Format>(codes, size, plan.first_nonzero);
    sums.underflows = part.numel - part.zeros - remaining;
  }
  if (amax >= plan.first_overflow) {
    sums.overflows = count_from<Format>(codes, size, plan.first_overflow) - part.nan;
  }
  if (amax >= plan.first_clipped) {
    sums.saturated = count_from<Format>(codes, size, plan.first_clipped) - part.nan;
  }
  sums.squared_error = dispatch_fp8_format(plan.format, "statistics", [&]<typename Target>() {
    return compute_squared_error<Format, Target>(codes, size, plan, part);
  });
  return sums;
}

template <typename Format>
void add_chunk(const typename Format::Bits* codes, std::size_t size,
               std::span<const CastPlan> plans, TensorSums& tensor, std::span<CastSums> casts) {
  TensorSums part;
  part.numel = static_cast<std::int64_t>(size);
  const std::uint32_t amax = scan_codes<Format>(codes, size, part);
  const ChunkSums sums = sum_chunk<Format>(codes, size, amax, part);
  part.sum = sums.sum;
  part.l1 = sums.l1;
  part.sum_squares = sums.squares;
  part.m2 = sums.m2;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    merge(casts[i], cast_chunk<Format>(codes, size, plans[i], amax, part));
  }
  merge(tensor, part);
}

// Adds one element; used for the few after the last whole vector.
template <typename Format>
void add_element(typename Format::Bits code, std::span<const CastPlan> plans, TensorSums& tensor,
                 std::span<CastSums> casts) {
  const std::uint32_t magnitude = code & Format::kMagnitudeMask;
  const bool is_nan = magnitude > Format::kTopExponentCode;
  const double x = decode<Format>(code);
  TensorSums part;
  part.numel = 1;
  part.nan = is_nan;
  part.posinf = std::isinf(x) && x > 0;
  part.neginf = std::isinf(x) && x < 0;
  part.zeros = magnitude == 0;
  part.subnormals = magnitude > 0 && magnitude < Format::kSmallestNormalCode;
  if (!is_nan) {
    part.min = part.max = x + 0.0;  // -0 becomes +0
    if (magnitude > 0) part.smallest_nonzero = std::fabs(x);
  }
  if (std::isfinite(x)) {
    part.sum = x;
    part.l1 = std::fabs(x);
    part.sum_squares = x * x;
  }
  merge(tensor, part);

  for (std::size_t i = 0; i < plans.size(); ++i) {
    const CastPlan& plan = plans[i];
    const auto decoded = dispatch_fp8_format(plan.format, "statistics", [&]<typename Target>() {
      const auto scaled = decode<Format>(code) * plan.scale;
      return decode<Target>(encode<Target>(scaled, Saturation::saturating)) * plan.scale_inv;
    });
    const double error = static_cast<double>(decoded) - x;
    merge(casts[i],
          {1, magnitude > 0 && magnitude < plan.first_nonzero,
           !is_nan && magnitude >= plan.first_overflow, !is_nan && magnitude >= plan.first_clipped,
           error * error, plan.scale_inv, plan.scale_inv});
  }
}

template <typename Format>
void add_elements(const typename Format::Bits* codes, std::size_t size,
                  std::span<const CastPlan> plans, TensorSums& tensor, std::span<CastSums> casts) {
  const std::size_t whole = size - size % pair_lanes();
  for (std::size_t begin = 0; begin < whole; begin += kStatisticsChunk) {
    const std::size_t end = std::min<std::size_t>(whole, begin + kStatisticsChunk);
    add_chunk<Format>(codes + begin, end - begin, plans, tensor, casts);
  }
  for (std::size_t i = whole; i < size; ++i) {
    add_element<Format>(codes[i], plans, tensor, casts);
  }
}

}  // namespace

void add_statistics(FormatId input, const void* x, std::size_t size,
                    std::span<const CastPlan> plans, TensorSums& tensor,
                    std::span<CastSums> casts) {
  dispatch_high_precision_format(input, "statistics", [&]<typename Format>() {
    add_elements<Format>(static_cast<const typename Format::Bits*>(x), size, plans, tensor, casts);
  });
}

}  // namespace telens::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace telens {
HWY_EXPORT(add_statistics);

namespace kernels {

// The magnitudes at which the counters of a cast begin, computed once per scale from core/formats.
namespace {

// Returns the smallest magnitude of Input, from `first` to infinity, for which the predicate holds;
// infinity + 1 if there is none. The predicate must be monotonic: true from some magnitude on.
template <typename Input, typename Predicate>
std::uint32_t first_magnitude(std::uint32_t first, const Predicate& holds) {
  std::uint32_t last = Input::kTopExponentCode + 1U;
  while (first < last) {
    const std::uint32_t middle = first + (last - first) / 2;
    if (holds(decode<Input>(static_cast<typename Input::Bits>(middle)))) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return first;
}

}  // namespace

CastPlan plan_cast(FormatId input, FormatId output, float scale) {
  CastPlan plan{output, scale, 1 / scale};
  // The sign of a scale moves to the codes and back and does not affect magnitudes.
  const float factor = std::fabs(scale);
  const float inverse = std::fabs(plan.scale_inv);
  dispatch_high_precision_format(input, "statistics", [&]<typename Input>() {
    dispatch_fp8_format(output, "statistics", [&]<typename Output>() {
      plan.first_nonzero = first_magnitude<Input>(
          1, [&](float x) { return encode<Output>(x * factor, Saturation::saturating) != 0; });
      plan.first_overflow =
          first_magnitude<Input>(1, [&](float x) { return x > Output::kMax * inverse; });
      plan.first_clipped = first_magnitude<Input>(1, [&](float x) {
        return encode<Output>(x * factor, Saturation::non_saturating) > Output::kMaxCode;
      });
    });
  });
  return plan;
}

void add_statistics(FormatId input, const void* x, std::size_t size,
                    std::span<const CastPlan> plans, TensorSums& tensor,
                    std::span<CastSums> casts) {
  HWY_DYNAMIC_DISPATCH(telens::add_statistics)(input, x, size, plans, tensor, casts);
}

}  // namespace kernels
}  // namespace telens
#endif
