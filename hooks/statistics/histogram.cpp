#include "hooks/statistics/histogram.h"

#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "core/base/error.h"
#include "core/formats/convert.h"
#include "core/formats/dispatch.h"
#include "core/ops/histogram_layout.h"

namespace telens {

// ---- names

namespace {

constexpr std::array<std::pair<HistogramBins, std::string_view>, 2> kBins{
    {{HistogramBins::exponent, "exponent_histogram_"}, {HistogramBins::codes, "code_histogram_"}}};

constexpr std::array<std::pair<FormatId, std::string_view>, 3> kFormats{
    {{FormatId::bf16, "bf16"}, {FormatId::fp16, "fp16"}, {FormatId::fp32, "fp32"}}};

}  // namespace

std::string format_histogram_name(const HistogramName& name) {
  std::string text;
  for (const auto& [bins, prefix] : kBins) {
    if (bins == name.bins) text += prefix;
  }
  for (const auto& [format, suffix] : kFormats) {
    if (format == name.format) text += suffix;
  }
  return text;
}

std::optional<HistogramName> parse_histogram_name(std::string_view text) {
  for (const auto& [bins, prefix] : kBins) {
    if (!text.starts_with(prefix)) continue;
    for (const auto& [format, suffix] : kFormats) {
      const bool has_codes = bins == HistogramBins::exponent || format != FormatId::fp32;
      if (has_codes && text.substr(prefix.size()) == suffix) return HistogramName{bins, format};
    }
  }
  return std::nullopt;
}

// ---- statistics

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

void check_bin(const Histogram& histogram, std::int64_t bin) {
  const std::int64_t bins = histogram.name.bins == HistogramBins::codes ? kCodeBins : kExponentBins;
  if (bin < 0 || bin >= bins) {
    raise<UsageError>("{}: unknown bin {}; expected 0 to {}", format_histogram_name(histogram.name),
                      bin, bins - 1);
  }
}

// ---- all codes

// Calls use(code, value, count) for each bin of a histogram over all codes.
template <typename Use>
void for_each_code(const Histogram& histogram, const Use& use) {
  if (histogram.name.bins != HistogramBins::codes) {
    raise<UsageError>("{}: only a histogram over all codes gives exact statistics",
                      format_histogram_name(histogram.name));
  }
  const auto visit = [&]<typename Format>() {
    for (const auto& [bin, count] : histogram.bins) {
      check_bin(histogram, bin);
      const auto code = static_cast<typename Format::Bits>(bin);
      if (count > 0) use.template operator()<Format>(code, decode<Format>(code), count);
    }
  };
  dispatch_high_precision_format(histogram.name.format, "histogram", visit);
}

// Sums of finite elements. With 64 bits of mantissa, products of a code's 11 bits and a count are
// exact up to 2^53 elements, and squares up to 2^42.
struct ExactSums {
  long double sum = 0;
  long double l1 = 0;
  long double squares = 0;
};

ExactSums exact_sums(const Histogram& histogram) {
  ExactSums sums;
  for_each_code(histogram, [&]<typename Format>(auto, float value, std::int64_t count) {
    if (!std::isfinite(value)) return;
    const auto x = static_cast<long double>(value);
    const auto n = static_cast<long double>(count);
    sums.sum += n * x;
    sums.l1 += n * std::fabs(x);
    sums.squares += n * x * x;
  });
  return sums;
}

// ---- exponents

// Bounds low <= |x| <= high of a bin's elements x; both NaN for NaN.
struct Magnitudes {
  double low;
  double high;
};

template <typename Format>
Magnitudes magnitudes_of_exponent_bin(std::int64_t bin) {
  if (bin == kNanBin) return {kNotANumber, kNotANumber};
  if (bin == kZeroBin) return {0, 0};
  if (bin == kNegativeInfinityBin || bin == kPositiveInfinityBin) return {kInfinity, kInfinity};
  const std::int64_t distance = std::abs(bin - kZeroBin);
  if (distance == kSubnormalDistance) {
    return {Format::kSmallestSubnormal, Format::kSmallestNormal - Format::kSmallestSubnormal};
  }
  const auto exponent = static_cast<int>(distance - distance_of_exponent(0));
  const double steps = std::ldexp(1.0, Format::kMantissaBits);
  return {std::ldexp(1.0, exponent), std::ldexp(2 - 1 / steps, exponent)};
}

// Calls use(magnitudes, count) for each bin of any histogram.
template <typename Use>
void for_each_bin(const Histogram& histogram, const Use& use) {
  if (histogram.name.bins == HistogramBins::codes) {
    for_each_code(histogram, [&]<typename Format>(auto, float value, std::int64_t count) {
      const double magnitude = std::fabs(static_cast<double>(value));
      use(Magnitudes{magnitude, magnitude}, count);
    });
    return;
  }
  dispatch_high_precision_format(histogram.name.format, "histogram", [&]<typename Format>() {
    for (const auto& [bin, count] : histogram.bins) {
      check_bin(histogram, bin);
      if (count > 0) use(magnitudes_of_exponent_bin<Format>(bin), count);
    }
  });
}

// ---- casts

// The cast of an element with a given magnitude.
template <typename Fp8>
struct MagnitudeCast {
  float scale;

  explicit MagnitudeCast(double from) : scale(static_cast<float>(from)) {}

  bool underflows(double magnitude) const {
    return magnitude != 0 &&
           encode<Fp8>(static_cast<float>(magnitude) * scale, Saturation::saturating) == 0;
  }
  bool overflows(double magnitude) const {
    return static_cast<float>(magnitude) > Fp8::kMax * (1 / scale);
  }
  bool clips(double magnitude) const {
    return encode<Fp8>(static_cast<float>(magnitude) * scale, Saturation::non_saturating) >
           Fp8::kMaxCode;
  }
};

void add_if(bool surely, bool possibly, std::int64_t count, Bounds& bounds) {
  if (surely) bounds.low += static_cast<double>(count);
  if (possibly) bounds.high += static_cast<double>(count);
}

}  // namespace

NonFiniteCounts count_nonfinite(const Histogram& histogram) {
  NonFiniteCounts counts;
  const auto add = [&](float value, double count) {
    if (std::isnan(value)) counts.nans += count;
    if (std::isinf(value)) counts.infinities += count;
  };
  for (const auto& [bin, elements] : histogram.bins) {
    if (elements <= 0) continue;
    const auto count = static_cast<double>(elements);
    if (histogram.name.bins == HistogramBins::exponent) {
      if (bin == kNanBin) counts.nans += count;
      if (bin == kNegativeInfinityBin || bin == kPositiveInfinityBin) counts.infinities += count;
    } else if (bin >= 0 && bin < kCodeBins) {
      dispatch_high_precision_format(histogram.name.format, "histogram", [&]<typename Format>() {
        add(decode<Format>(static_cast<typename Format::Bits>(bin)), count);
      });
    }
  }
  return counts;
}

TensorSums compute_tensor_sums(const Histogram& histogram) {
  TensorSums sums;
  for_each_code(histogram, [&]<typename Format>(auto code, float value, std::int64_t count) {
    const double x = static_cast<double>(value) + 0.0;  // -0 becomes +0
    sums.numel += count;
    if (std::isnan(x)) {
      sums.nan += count;
      return;
    }
    const auto magnitude = code & Format::kMagnitudeMask;
    if (std::isinf(x)) (x > 0 ? sums.posinf : sums.neginf) += count;
    if (magnitude == 0) sums.zeros += count;
    if (magnitude > 0 && magnitude < Format::kSmallestNormalCode) sums.subnormals += count;
    sums.min = smaller(sums.min, x);
    sums.max = larger(sums.max, x);
    if (magnitude > 0) sums.smallest_nonzero = smaller(sums.smallest_nonzero, std::fabs(x));
  });
  const std::int64_t finite = finite_count(sums);
  if (finite == 0) return sums;
  const ExactSums exact = exact_sums(histogram);
  sums.sum = static_cast<double>(exact.sum);
  sums.l1 = static_cast<double>(exact.l1);
  sums.sum_squares = static_cast<double>(exact.squares);
  const long double mean = exact.sum / static_cast<long double>(finite);
  long double m2 = 0;
  for_each_code(histogram, [&]<typename Format>(auto, float value, std::int64_t count) {
    if (!std::isfinite(value)) return;
    const long double distance = static_cast<long double>(value) - mean;
    m2 += static_cast<long double>(count) * distance * distance;
  });
  sums.m2 = static_cast<double>(m2);
  return sums;
}

CastSums compute_cast_sums(const Histogram& histogram, FormatId fp8_format, float scale) {
  CastSums sums;
  long double squared_error = 0;
  const float scale_inv = 1 / scale;
  dispatch_fp8_format(fp8_format, "histogram", [&]<typename Fp8>() {
    const MagnitudeCast<Fp8> cast(std::fabs(scale));
    for_each_code(histogram, [&]<typename Format>(auto, float value, std::int64_t count) {
      sums.numel += count;
      const float magnitude = std::fabs(value);
      if (!std::isnan(value)) {
        if (cast.underflows(magnitude)) sums.underflows += count;
        if (cast.overflows(magnitude)) sums.overflows += count;
        if (cast.clips(magnitude)) sums.saturated += count;
      }
      const float decoded =
          decode<Fp8>(encode<Fp8>(value * scale, Saturation::saturating)) * scale_inv;
      const auto error = static_cast<long double>(decoded) - static_cast<long double>(value);
      squared_error += static_cast<long double>(count) * error * error;
    });
  });
  sums.squared_error = static_cast<double>(squared_error);
  if (sums.numel > 0) sums.scale_inv_min = sums.scale_inv_max = scale_inv;
  return sums;
}

void merge(CastBounds& into, const CastBounds& part) {
  const auto add = [](Bounds& sum, const Bounds& more) {
    sum.low += more.low;
    sum.high += more.high;
  };
  into.numel += part.numel;
  into.nonfinite += part.nonfinite;
  add(into.underflows, part.underflows);
  add(into.overflows, part.overflows);
  add(into.saturated, part.saturated);
}

void merge(MagnitudeCounts& into, const MagnitudeCounts& part) {
  into.numel += part.numel;
  into.zeros += part.zeros;
  into.infinities += part.infinities;
  into.nans += part.nans;
  for (const auto& [exponent, count] : part.exponents) into.exponents[exponent] += count;
}

MagnitudeCounts count_magnitudes(const Histogram& histogram) {
  MagnitudeCounts counts;
  for_each_bin(histogram, [&](const Magnitudes& x, std::int64_t count) {
    counts.numel += count;
    if (std::isnan(x.high)) {
      counts.nans += count;
    } else if (std::isinf(x.high)) {
      counts.infinities += count;
    } else if (x.high == 0) {
      counts.zeros += count;
    } else {
      counts.exponents[std::ilogb(x.high)] += count;
    }
  });
  return counts;
}

Bounds compute_amax(const Histogram& histogram) {
  Bounds amax;
  for_each_bin(histogram, [&](const Magnitudes& magnitudes, std::int64_t) {
    amax.low = larger(amax.low, magnitudes.low);
    amax.high = larger(amax.high, magnitudes.high);
  });
  return amax;
}

CastBounds compute_cast_bounds(const Histogram& histogram, FormatId fp8_format,
                               const Bounds& scale) {
  CastBounds bounds;
  dispatch_fp8_format(fp8_format, "histogram", [&]<typename Fp8>() {
    const MagnitudeCast<Fp8> smallest(scale.low);
    const MagnitudeCast<Fp8> largest(scale.high);
    for_each_bin(histogram, [&](const Magnitudes& x, std::int64_t count) {
      bounds.numel += count;
      if (!std::isfinite(x.high)) bounds.nonfinite += count;
      if (std::isnan(x.low)) return;
      // With the larger scale, large numbers overflow; with the smaller one, small numbers
      // underflow.
      add_if(largest.underflows(x.high), smallest.underflows(x.low), count, bounds.underflows);
      add_if(smallest.overflows(x.low), largest.overflows(x.high), count, bounds.overflows);
      add_if(smallest.clips(x.low), largest.clips(x.high), count, bounds.saturated);
    });
  });
  return bounds;
}

}  // namespace telens
