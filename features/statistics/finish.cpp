#include "features/statistics/finish.h"

#include <cmath>
#include <limits>

namespace telens {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// What a sum over all elements is, given the sum over the finite ones.
double with_infinities(const TensorSums& sums, double finite_sum) {
  if (sums.nan > 0 || (sums.posinf > 0 && sums.neginf > 0)) return kNan;
  if (sums.posinf > 0) return kInf;
  if (sums.neginf > 0) return -kInf;
  return finite_sum;
}

double with_infinite_magnitudes(const TensorSums& sums, double finite_sum) {
  if (sums.nan > 0) return kNan;
  return sums.posinf + sums.neginf > 0 ? kInf : finite_sum;
}

double standard_deviation(const TensorSums& sums) {
  if (finite_count(sums) < sums.numel || sums.numel < 2) return kNan;
  return std::sqrt(sums.m2 / static_cast<double>(sums.numel - 1));
}

double amax(const TensorSums& sums) {
  return sums.nan > 0 ? kNan : larger(std::abs(sums.min), std::abs(sums.max));
}

double dynamic_range(const TensorSums& sums) {
  if (sums.nan > 0) return kNan;
  if (sums.zeros == sums.numel) return 0;
  return std::log2(amax(sums)) - std::log2(sums.smallest_nonzero);
}

double percent(std::int64_t part, std::int64_t whole) {
  return 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

// The counters, which need no element to have a value.
std::optional<std::int64_t> counter(Statistic statistic, const TensorSums& sums) {
  switch (statistic) {
    case Statistic::numel:
      return sums.numel;
    case Statistic::nan:
      return sums.nan;
    case Statistic::posinf:
      return sums.posinf;
    case Statistic::neginf:
      return sums.neginf;
    case Statistic::nonfinite:
      return sums.nan + sums.posinf + sums.neginf;
    case Statistic::zeros:
      return sums.zeros;
    case Statistic::subnormals:
      return sums.subnormals;
    default:
      return std::nullopt;
  }
}

}  // namespace

double finish(Statistic statistic, const TensorSums& sums) {
  if (const auto count = counter(statistic, sums)) return static_cast<double>(*count);
  if (sums.numel == 0) return kNan;
  switch (statistic) {
    case Statistic::min:
      return sums.nan > 0 ? kNan : sums.min;
    case Statistic::max:
      return sums.nan > 0 ? kNan : sums.max;
    case Statistic::mean:
      return with_infinities(sums, sums.sum / static_cast<double>(sums.numel));
    case Statistic::std_dev:
      return standard_deviation(sums);
    case Statistic::l1_norm:
      return with_infinite_magnitudes(sums, sums.l1);
    case Statistic::l2_norm:
      return with_infinite_magnitudes(sums, std::sqrt(sums.sum_squares));
    case Statistic::cur_amax:
      return amax(sums);
    case Statistic::dynamic_range:
      return dynamic_range(sums);
    default:
      raise<UsageError>("statistic {} is not one of the high-precision tensor as a whole",
                        name_of(statistic));
  }
}

double finish(Statistic statistic, const CastSums& sums) {
  if (statistic == Statistic::saturated) return static_cast<double>(sums.saturated);
  switch (statistic) {
    case Statistic::underflows:
      return sums.numel == 0 ? kNan : percent(sums.underflows, sums.numel);
    case Statistic::overflows:
      return sums.numel == 0 ? kNan : percent(sums.overflows, sums.numel);
    case Statistic::scale_inv_min:
      return sums.numel == 0 ? kNan : sums.scale_inv_min;
    case Statistic::scale_inv_max:
      return sums.numel == 0 ? kNan : sums.scale_inv_max;
    case Statistic::mse:
      return sums.numel == 0 ? kNan : sums.squared_error / static_cast<double>(sums.numel);
    default:
      raise<UsageError>("statistic {} is not one of a cast", name_of(statistic));
  }
}

double finish(const BlockRanges& ranges) {
  return ranges.blocks == 0 || ranges.nan_blocks > 0 ? kNan : std::log2(ranges.max_ratio);
}

}  // namespace telens
