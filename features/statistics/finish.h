// From sums to the values that are recorded; the definitions of the contract. No LibTorch.
#pragma once

#include <array>

#include "features/statistics/requests.h"

namespace telens {

// Recorded with any statistic of a tensor, asked for or not; `saturated` with those of a cast.
inline constexpr std::array kTensorCounters{Statistic::nan,        Statistic::posinf,
                                            Statistic::neginf,     Statistic::zeros,
                                            Statistic::subnormals, Statistic::nonfinite};
inline constexpr std::array kCastCounters{Statistic::saturated};

// A statistic of the high-precision tensor; UsageError for one of a cast or of blocks.
//   min, max            NaN if any element is NaN; an Inf counts
//   mean, l1_norm, l2_norm   what IEEE sums over all elements give: NaN, Inf or the finite value
//   std                 unbiased; NaN with a NaN or Inf, and for one element
//   cur_amax            max |x|; NaN if any element is NaN
//   dynamic_range       log2(amax) - log2(smallest nonzero |x|); 0 without nonzero elements; NaN
//                       if any element is NaN; Inf if some, NaN if all nonzero elements are Inf
// Of an empty tensor (numel 0) counters are 0, all else is NaN; nobody records it.
double finish(Statistic statistic, const TensorSums& sums);

// A statistic of a cast; UsageError for any other.
//   underflows%, overflows%  of all elements, in percent
//   mse                      mean over all elements of (decoded - x)^2
double finish(Statistic statistic, const CastSums& sums);

// max_blockwise_dynamic_range: the largest block's log2(amax) - log2(smallest nonzero |x|); NaN if
// a block has a NaN or nothing but Inf and zeros.
double finish(const BlockRanges& ranges);

}  // namespace telens
