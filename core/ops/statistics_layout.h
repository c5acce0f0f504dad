// What one read of a tensor yields, and how two such results become one. Plain data of 8-byte
// fields: a kernel writes it as int64 words (core/ops/statistics.h), the host reads it back, ranks
// exchange it. Host and device; no LibTorch.
//
// Special values. Every element counts in exactly one of: NaN, +Inf, -Inf, finite.
//   numel, nan, posinf, neginf, zeros, subnormals   exact counts over all elements
//   min, max, smallest_nonzero                      over all elements that are not NaN
//   sum, l1, sum_squares, m2                        over the finite elements only
// So no information is lost to one bad element, and a finished statistic still says what IEEE
// arithmetic over all elements says (features/statistics/finish.h): with a NaN, everything but the
// counters is NaN; with an Inf, l1_norm and l2_norm are Inf, mean is that Inf (NaN if both signs
// occur) and std is NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/formats/host_device.h"

namespace telens {

// Elements whose sums a kernel may keep in FP32 before it turns to double; also the unit at which
// a tensor may be cut without changing more than the last bits of a sum.
inline constexpr std::int64_t kStatisticsChunk = 8192;

// The default value is the empty tensor's, the neutral element of merge.
struct TensorSums {
  std::int64_t numel = 0;
  std::int64_t nan = 0;
  std::int64_t posinf = 0;
  std::int64_t neginf = 0;
  std::int64_t zeros = 0;       // both signs
  std::int64_t subnormals = 0;  // of the tensor's own dtype
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  double smallest_nonzero = std::numeric_limits<double>::infinity();  // smallest |x| > 0
  double sum = 0;
  double l1 = 0;           // sum |x|
  double sum_squares = 0;  // sum x^2
  double m2 = 0;           // sum (x - mean)^2, mean = sum / finite_count
};

// What a saturating cast to an FP8 format with one scale does to a tensor:
// code = encode(FP32(x) * scale), and back: decode(code) * scale_inv, scale_inv = 1 / scale, each
// product rounded to FP32.
struct CastSums {
  std::int64_t numel = 0;       // elements that were cast
  std::int64_t underflows = 0;  // nonzero before, zero after
  std::int64_t overflows = 0;   // |x| > FP32(largest finite value of the format * scale_inv)
  std::int64_t saturated = 0;   // the cast clipped: without saturation x, not a NaN, would have
                                // become Inf or NaN (fewer than overflows: 449 rounds to 448)
  double squared_error = 0;     // sum over all elements of (decoded - x)^2; so NaN with a NaN,
                                // Inf with an Inf (which saturates to a finite value)
  double scale_inv_min = std::numeric_limits<double>::infinity();
  double scale_inv_max = -std::numeric_limits<double>::infinity();
};

// The largest ratio max|x| / min|x != 0| of the blocks of a tensor; 1 for a block of zeros. A
// ratio and not its logarithm, so that every device finds the same bits.
struct BlockRanges {
  std::int64_t blocks = 0;
  std::int64_t nan_blocks = 0;  // blocks with a NaN, or whose nonzero elements are all Inf
  double max_ratio = 1;         // over the other blocks
};

inline constexpr std::int64_t kTensorSumsWords = sizeof(TensorSums) / sizeof(std::int64_t);
inline constexpr std::int64_t kCastSumsWords = sizeof(CastSums) / sizeof(std::int64_t);
inline constexpr std::int64_t kBlockRangesWords = sizeof(BlockRanges) / sizeof(std::int64_t);

// Words of TensorSums followed by that many CastSums.
TELENS_HOST_DEVICE constexpr std::int64_t statistics_words(std::int64_t casts) {
  return kTensorSumsWords + casts * kCastSumsWords;
}

TELENS_HOST_DEVICE constexpr std::int64_t finite_count(const TensorSums& sums) {
  return sums.numel - sums.nan - sums.posinf - sums.neginf;
}

// A NaN never vanishes.
TELENS_HOST_DEVICE constexpr double smaller(double a, double b) { return b < a || b != b ? b : a; }
TELENS_HOST_DEVICE constexpr double larger(double a, double b) { return a < b || b != b ? b : a; }

// Counters and extremes of the union are exact; m2 by Chan, Golub, LeVeque, "Updating formulae and
// a pairwise algorithm for computing sample variances" (1979), with means taken from the sums.
TELENS_HOST_DEVICE constexpr void merge(TensorSums& into, const TensorSums& part) {
  const double a = static_cast<double>(finite_count(into));
  const double b = static_cast<double>(finite_count(part));
  into.m2 += part.m2;
  if (a > 0 && b > 0) {
    const double delta = part.sum / b - into.sum / a;
    into.m2 += delta * delta * a * (b / (a + b));
  }
  into.numel += part.numel;
  into.nan += part.nan;
  into.posinf += part.posinf;
  into.neginf += part.neginf;
  into.zeros += part.zeros;
  into.subnormals += part.subnormals;
  into.min = smaller(into.min, part.min);
  into.max = larger(into.max, part.max);
  into.smallest_nonzero = smaller(into.smallest_nonzero, part.smallest_nonzero);
  into.sum += part.sum;
  into.l1 += part.l1;
  into.sum_squares += part.sum_squares;
}

TELENS_HOST_DEVICE constexpr void merge(CastSums& into, const CastSums& part) {
  into.numel += part.numel;
  into.underflows += part.underflows;
  into.overflows += part.overflows;
  into.saturated += part.saturated;
  into.squared_error += part.squared_error;
  into.scale_inv_min = smaller(into.scale_inv_min, part.scale_inv_min);
  into.scale_inv_max = larger(into.scale_inv_max, part.scale_inv_max);
}

TELENS_HOST_DEVICE constexpr void merge(BlockRanges& into, const BlockRanges& part) {
  into.blocks += part.blocks;
  into.nan_blocks += part.nan_blocks;
  into.max_ratio = larger(into.max_ratio, part.max_ratio);
}

}  // namespace telens
