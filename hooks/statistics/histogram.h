// Names of histograms, and statistics of a tensor computed from a histogram of its values after the
// run. A histogram over all codes loses only the order of the elements: counters are equal to the
// counters of one read of the tensor, and sums are correctly rounded. An exponent histogram gives
// bounds. No LibTorch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/formats/format_id.h"
#include "core/ops/statistics_layout.h"

namespace telens {

// ---- the names under which histograms are recorded, in the column that has the statistic of other
// records: "exponent_histogram_bf16", "code_histogram_fp16"

// The kinds of bins: core/ops/histogram_layout.h.
enum class HistogramBins : std::uint8_t { exponent, codes };

struct HistogramName {
  HistogramBins bins = HistogramBins::exponent;
  FormatId format = FormatId::bf16;  // the tensor's

  friend bool operator==(const HistogramName&, const HistogramName&) = default;
};

std::string format_histogram_name(const HistogramName& name);
std::optional<HistogramName> parse_histogram_name(std::string_view text);

// ---- statistics of a histogram

// A bin of core/ops/histogram_layout.h and the number of its elements.
struct BinCount {
  std::int64_t bin = 0;
  std::int64_t count = 0;
};

// `bins` in any order; empty bins are optional. Functions throw UsageError for a bin that the kind
// of histogram does not have.
struct Histogram {
  HistogramName name;
  std::span<const BinCount> bins;
};

// ---- exact, from any histogram

// Integers, exact up to 2^53. They are double because counts of a damaged file may sum to more than
// 2^63.
struct NonFiniteCounts {
  double nans = 0;
  double infinities = 0;

  double all() const { return nans + infinities; }
};

// Ignores bins that the kind of histogram does not have.
NonFiniteCounts count_nonfinite(const Histogram& histogram);

// ---- exact, from histograms over all codes; throws UsageError for others

TensorSums compute_tensor_sums(const Histogram& histogram);

// Returns the sums of a saturating cast to the FP8 format: core/ops/statistics_layout.h.
CastSums compute_cast_sums(const Histogram& histogram, FormatId fp8_format, float scale);

// ---- bounds, from any histogram; exact (low == high) from histograms over all codes

struct Bounds {
  double low = 0;
  double high = 0;
};

// Counts of elements, and bounds of their statistics.
struct CastBounds {
  std::int64_t numel = 0;
  std::int64_t nonfinite = 0;
  Bounds underflows;  // these three are counts, as in CastSums
  Bounds overflows;
  Bounds saturated;
};

void merge(CastBounds& into, const CastBounds& part);

// max |x|: 0 without elements, NaN with a NaN, Inf with an Inf.
Bounds compute_amax(const Histogram& histogram);

// Like compute_cast_sums, for a scale of which only bounds are known.
CastBounds compute_cast_bounds(const Histogram& histogram, FormatId fp8_format,
                               const Bounds& scale);

// ---- by magnitude

// Elements of either sign, by the exponent e of 2^e <= |x| < 2^(e+1). In an exponent histogram,
// subnormals have no individual exponents and count under the largest one's.
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
