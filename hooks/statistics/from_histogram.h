// Statistics of a tensor from a histogram of its values, after the run. A histogram over all codes
// loses nothing but the order of the elements: counters are those of one read of the tensor, sums
// are correctly rounded. An exponent histogram gives bounds. No LibTorch.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string_view>

#include "core/ops/statistics_layout.h"
#include "hooks/statistics/histogram_name.h"

namespace telens {

// A bin of core/ops/histogram_layout.h and how many elements fell into it.
struct BinCount {
  std::int64_t bin = 0;
  std::int64_t count = 0;
};

// `bins` in any order; those without elements may be left out. Throws UsageError for a bin that its
// kind of histogram does not have.
struct Histogram {
  HistogramName name;
  std::span<const BinCount> bins;
};

// ---- exact, from any histogram

// Whole numbers, exact up to 2^53: counts of a damaged file may add up to more than 2^63.
struct NonFiniteCounts {
  double nans = 0;
  double infinities = 0;

  double all() const { return nans + infinities; }
};

// Bins that its kind of histogram does not have count for nothing.
NonFiniteCounts count_nonfinite(const Histogram& histogram);

// ---- exact, from histograms over all codes; UsageError for others

TensorSums compute_tensor_sums(const Histogram& histogram);

// The sums of a saturating cast to the FP8 format: core/ops/statistics_layout.h.
CastSums compute_cast_sums(const Histogram& histogram, FormatId fp8_format, float scale);

// ---- bounds, from any histogram; exact ones, low == high, from those over all codes

struct Bounds {
  double low = 0;
  double high = 0;
};

// Counts of elements, and what of them is known.
struct CastBounds {
  std::int64_t numel = 0;
  std::int64_t nonfinite = 0;
  Bounds underflows;  // these three are counts, with the meaning of CastSums
  Bounds overflows;
  Bounds saturated;
};

void merge(CastBounds& into, const CastBounds& part);

// max |x|: 0 without an element, NaN with a NaN, Inf with an Inf.
Bounds compute_amax(const Histogram& histogram);

// The same for a scale that is only known to lie between two.
CastBounds compute_cast_bounds(const Histogram& histogram, FormatId fp8_format,
                               const Bounds& scale);

// ---- by magnitude

// Elements of either sign, by the exponent e of 2^e <= |x| < 2^(e+1). Of an exponent histogram all
// subnormals count under the largest one's.
struct MagnitudeCounts {
  std::int64_t numel = 0;
  std::int64_t zeros = 0;
  std::int64_t infinities = 0;
  std::int64_t nans = 0;
  std::map<int, std::int64_t> exponents;

  friend bool operator==(const MagnitudeCounts&, const MagnitudeCounts&) = default;
};

void merge(MagnitudeCounts& into, const MagnitudeCounts& part);

MagnitudeCounts count_magnitudes(const Histogram& histogram);

}  // namespace telens
