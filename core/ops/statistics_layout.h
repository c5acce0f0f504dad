// The sums of one read of a tensor, of an attention's scores or of a block cast, and how two such
// results are merged. Plain data of 8-byte fields: a kernel writes it as int64 words
// (core/ops/statistics.h, attention.h, block_errors.h), the host reads it back, ranks exchange it.
// Host and device; no LibTorch.
//
// Special values. Every element counts in exactly one of: NaN, +Inf, -Inf, finite.
//   numel, nan, posinf, neginf, zeros, subnormals   exact counts over all elements
//   min, max, smallest_nonzero                      over all elements that are not NaN
//   sum, l1, sum_squares, m2, moments               over the finite elements only
// So a bad element does not lose information, and a finished statistic still agrees with IEEE
// arithmetic over all elements (hooks/statistics/finish.h): with a NaN, everything but the counters
// is NaN; with an Inf, l1_norm and l2_norm are Inf, mean is that Inf (NaN if both signs occur) and
// std is NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/formats/format_id.h"
#include "core/formats/host_device.h"
#include "core/formats/scheme.h"

namespace telens {

// The number of elements whose sums a kernel may keep in FP32 before it changes to double. Also the
// unit at which a tensor may be split without changing more than the last bits of a sum.
inline constexpr std::int64_t kStatisticsChunk = 8192;

// Powers of the distances of finite elements from their mean: optional sums, which stay empty
// unless a statistic requests them. They have a separate count, so that reads without them are not
// mistaken for reads with them.
//
// Sums of powers of the elements themselves would lose all digits if the mean is large. These do
// not: a sum of fourth powers has no term that cancels more than a digit, and an error e of the
// mean changes it by 4 e |m3| <= (4 e / std) m4. A merge rounds the mean once, so that k merges
// change m4 by a relative 4 k 2^-53 |mean| / std; in m2 the same e counts squared. Fourth powers of
// all FP32 values are in double's range: (2^129)^4 and (2^-149)^4.
struct CentralMoments {
  std::int64_t count = 0;  // finite elements
  double mean = 0;
  double m2 = 0;  // sum (x - mean)^2
  double m3 = 0;  // sum (x - mean)^3
  double m4 = 0;  // sum (x - mean)^4
};

// The sums of one pass over a tensor. The default value is the empty tensor's, which is the neutral
// element of merge.
struct OnePassSums {
  std::int64_t numel = 0;
  std::int64_t nan = 0;
  std::int64_t posinf = 0;
  std::int64_t neginf = 0;
  std::int64_t zeros = 0;       // both signs
  std::int64_t subnormals = 0;  // in the tensor's own dtype
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  double smallest_nonzero = std::numeric_limits<double>::infinity();  // smallest |x| > 0
  double sum = 0;
  double l1 = 0;           // sum |x|
  double sum_squares = 0;  // sum x^2
  double m2 = 0;           // sum (x - mean)^2, mean = sum / finite_count
};

struct TensorSums : OnePassSums {
  CentralMoments moments = {};  // empty unless requested
};

// The effects of a saturating cast to an FP8 format with one scale:
// code = encode(FP32(x) * scale), and back: decode(code) * scale_inv, scale_inv = 1 / scale, each
// product rounded to FP32.
struct CastSums {
  std::int64_t numel = 0;       // elements that were cast
  std::int64_t underflows = 0;  // nonzero before, zero after
  std::int64_t overflows = 0;   // |x| > FP32(largest finite value of the format * scale_inv)
  std::int64_t saturated = 0;   // the cast clipped: without saturation x, not a NaN, would have
                                // become Inf or NaN (fewer than overflows: 449 rounds to 448)
  double squared_error = 0;  // sum over all elements of (decoded - x)^2; so NaN if x has a NaN, Inf
                             // if x has an Inf (which saturates to a finite value)
  double scale_inv_min = std::numeric_limits<double>::infinity();
  double scale_inv_max = -std::numeric_limits<double>::infinity();
};

// The largest ratio max|x| / min|x != 0| of the blocks of a tensor; 1 for a block of zeros. A ratio
// instead of its logarithm, so that every device computes the same bits.
struct BlockRanges {
  std::int64_t blocks = 0;
  std::int64_t nan_blocks = 0;  // blocks with a NaN, or whose nonzero elements are all Inf
  double max_ratio = 1;         // over the other blocks
};

inline constexpr std::int64_t kOnePassWords = sizeof(OnePassSums) / sizeof(std::int64_t);
inline constexpr std::int64_t kMomentsWords = sizeof(CentralMoments) / sizeof(std::int64_t);
inline constexpr std::int64_t kTensorSumsWords = kOnePassWords + kMomentsWords;
static_assert(sizeof(TensorSums) == kTensorSumsWords * sizeof(std::int64_t));
inline constexpr std::int64_t kCastSumsWords = sizeof(CastSums) / sizeof(std::int64_t);
inline constexpr std::int64_t kBlockRangesWords = sizeof(BlockRanges) / sizeof(std::int64_t);

// Words of TensorSums followed by that many CastSums.
TELENS_HOST_DEVICE constexpr std::int64_t statistics_words(std::int64_t casts) {
  return kTensorSumsWords + casts * kCastSumsWords;
}

TELENS_HOST_DEVICE constexpr std::int64_t finite_count(const OnePassSums& sums) {
  return sums.numel - sums.nan - sums.posinf - sums.neginf;
}

// Never drops a NaN.
TELENS_HOST_DEVICE constexpr double smaller(double a, double b) { return b < a || b != b ? b : a; }
TELENS_HOST_DEVICE constexpr double larger(double a, double b) { return a < b || b != b ? b : a; }

// Sums of powers of distances from a center near the mean.
struct CenteredSums {
  double first = 0;
  double second = 0;
  double third = 0;
  double fourth = 0;

  TELENS_HOST_DEVICE constexpr void add(double distance) {
    const double square = distance * distance;
    first += distance;
    second += square;
    third += square * distance;
    fourth += square * square;
  }
};

// The moments of count > 0 elements, by the binomial theorem: the center need not be the mean.
TELENS_HOST_DEVICE constexpr CentralMoments moments_around(double center, std::int64_t count,
                                                           const CenteredSums& sums) {
  const double n = static_cast<double>(count);
  const double e = sums.first / n;  // the mean's distance from the center
  const double m2 = sums.second - n * e * e;
  const double m4 =
      sums.fourth - 4 * e * sums.third + 6 * e * e * sums.second - 3 * n * e * e * e * e;
  return {count, center + e, m2 > 0 ? m2 : 0, sums.third - 3 * e * sums.second + 2 * n * e * e * e,
          m4 > 0 ? m4 : 0};
}

// From P. Pebay, "Formulas for Robust, One-Pass Parallel Computation of Covariances and
// Arbitrary-Order Statistical Moments", SAND2008-6212, section 3, with d = (difference of the
// means) / n.
TELENS_HOST_DEVICE constexpr void merge(CentralMoments& into, const CentralMoments& part) {
  if (part.count == 0) return;
  if (into.count == 0) {
    into = part;
    return;
  }
  const double a = static_cast<double>(into.count);
  const double b = static_cast<double>(part.count);
  const double n = a + b;
  const double d = (part.mean - into.mean) / n;
  const double d2 = d * d;
  into.m4 += part.m4 + 4 * d * (a * part.m3 - b * into.m3) +
             6 * d2 * (a * a * part.m2 + b * b * into.m2) +
             d2 * d2 * n * a * b * (a * a - a * b + b * b);
  into.m3 += part.m3 + 3 * d * (a * part.m2 - b * into.m2) + d2 * d * n * a * b * (a - b);
  into.m2 += part.m2 + d2 * n * a * b;
  into.mean += d * b;
  into.count += part.count;
}

// Counters and extremes of the union are exact. m2 is from Chan, Golub, LeVeque, "Updating formulae
// and a pairwise algorithm for computing sample variances" (1979), with means computed from the
// sums.
TELENS_HOST_DEVICE constexpr void merge(OnePassSums& into, const OnePassSums& part) {
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

TELENS_HOST_DEVICE constexpr void merge(TensorSums& into, const TensorSums& part) {
  merge(static_cast<OnePassSums&>(into), part);
  merge(into.moments, part.moments);
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

// The sums of one read of an attention's scores that TensorSums does not contain.
//
// A row is the set of scores that one query sees in one head: the argument of softmax, after scale,
// bias and mask. A row counts in exactly one category:
//   blind       it sees no key, for example padding; a bias of -Inf hides a key, as a mask does
//   nonfinite   a visible score is NaN or +Inf, or all are -Inf: its softmax is not defined
//   single      it sees one key, so it has nothing to choose
//   choosing    every other row; the sums below are over these rows
struct ScoreSums {
  std::int64_t blind = 0;
  std::int64_t nonfinite = 0;
  std::int64_t single = 0;
  std::int64_t choosing = 0;
  std::int64_t one_key = 0;    // one key has more than kOneKeyShare of the softmax
  std::int64_t first_key = 0;  // of these rows, that key is the first one that the query sees
  double entropy = 0;          // sum of the entropies, in nats
  double share = 0;  // sum of the entropies, each divided by the largest possible: 0 to 1 per row
};

inline constexpr double kOneKeyShare = 0.99;
inline constexpr std::int64_t kScoreSumsWords = sizeof(ScoreSums) / sizeof(std::int64_t);

constexpr void merge(ScoreSums& into, const ScoreSums& part) {
  into.blind += part.blind;
  into.nonfinite += part.nonfinite;
  into.single += part.single;
  into.choosing += part.choosing;
  into.one_key += part.one_key;
  into.first_key += part.first_key;
  into.entropy += part.entropy;
  into.share += part.share;
}

// The errors of a block format in one block of a tensor. Underflows and saturation are defined as
// in CastSums.
struct BlockErrors {
  std::int32_t elements = 0;  // elements of the tensor in the block: blocks end with their line
  std::int32_t nonzero = 0;   // 1 if at least one element was not zero; NaN does not count
  std::int32_t underflows = 0;
  std::int32_t saturated = 0;
  double squared_error = 0;  // sum of (decoded - x)^2
};

// The difference between the two copies of a tensor: compares the values of a tensor's rowwise and
// columnwise copies in FP32.
struct CopiesDifference {
  std::int64_t elements = 0;
  std::int64_t different = 0;  // two NaN are equal
  double relative = 0;         // sum of |a - b| / max(|a|, |b|) in FP32; 0 if they are equal
};

inline constexpr std::int64_t kBlockErrorsWords = sizeof(BlockErrors) / sizeof(std::int64_t);
inline constexpr std::int64_t kCopiesDifferenceWords =
    sizeof(CopiesDifference) / sizeof(std::int64_t);

constexpr void merge(CopiesDifference& into, const CopiesDifference& part) {
  into.elements += part.elements;
  into.different += part.different;
  into.relative += part.relative;
}

}  // namespace telens

namespace telens::ops {

// A hypothetical cast in blocks, whose error statistics are measured (CastSums): a cast by the
// quantizer of core/ops/block_quantize.h with its default options.
struct WhatIfCast {
  FormatId format;          // e4m3 or e5m2; packed: e2m1
  ScalingMode mode;         // any with blocks
  bool squares = false;     // blocks are squares, as they always are in block_2d
  bool columnwise = false;  // blocks run down the columns

  bool operator==(const WhatIfCast&) const = default;
};

}  // namespace telens::ops
