#include "hooks/statistics/catalogue.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "core/base/error.h"
#include "hooks/statistics/accumulator.h"

namespace telens {
namespace {

using config::Needs;
using config::StatisticDescription;
using config::Worse;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// Returns the IEEE sum over all elements, given the sum over the finite ones.
double with_infinities(const TensorSums& sums, double finite_sum) {
  if (sums.nan > 0 || (sums.posinf > 0 && sums.neginf > 0)) return kNan;
  if (sums.posinf > 0) return kInf;
  if (sums.neginf > 0) return -kInf;
  return finite_sum;
}

// Returns the IEEE sum over magnitudes or squares, given the sum over the finite ones.
double with_infinite_magnitudes(const TensorSums& sums, double finite_sum) {
  if (sums.nan > 0) return kNan;
  return sums.posinf + sums.neginf > 0 ? kInf : finite_sum;
}

double standard_deviation(const TensorSums& sums) {
  if (finite_count(sums) < sums.numel || sums.numel < 2) return kNan;
  return std::sqrt(sums.m2 / static_cast<double>(sums.numel - 1));
}

// NaN if an element is NaN or Inf, or if all are equal, like scipy.stats.kurtosis(fisher=False).
double kurtosis(const TensorSums& sums) {
  const CentralMoments& moments = sums.moments;
  if (moments.count < sums.numel) return kNan;
  return static_cast<double>(moments.count) * moments.m4 / (moments.m2 * moments.m2);
}

// 0 without nonzero elements; NaN if an element is NaN or all nonzero elements are Inf; Inf if only
// some are Inf.
double dynamic_range(const TensorSums& sums) {
  if (sums.nan > 0) return kNan;
  if (sums.zeros == sums.numel) return 0;
  return std::log2(amax(sums)) - std::log2(sums.smallest_nonzero);
}

// NaN if a block has a NaN, or if all its nonzero elements are Inf.
double max_blockwise_dynamic_range(const BlockRanges& ranges) {
  return ranges.blocks == 0 || ranges.nan_blocks > 0 ? kNan : std::log2(ranges.max_ratio);
}

// Returns the value of a scale statistic; nullopt if no read had a scale.
std::optional<double> known(std::int64_t count, double value) {
  return count > 0 ? std::optional(value) : std::nullopt;
}

// nullopt if every row is blind, nonfinite or has a single key.
std::optional<double> mean_of_rows(const ScoreSums& sums, double sum) {
  return known(sums.choosing, sum / static_cast<double>(sums.choosing));
}

std::optional<double> percent_of_rows(const ScoreSums& sums, std::int64_t rows) {
  const std::int64_t all = sums.blind + sums.nonfinite + sums.single + sums.choosing;
  return known(all, percent(rows, all));
}

// ---- rows. Each row names its finish function: adding a statistic means adding a row here.

using Tensor = double (*)(const TensorSums&);
using Cast = double (*)(const CastSums&);
using Scale = std::optional<double> (*)(const ScaleSums&);
using Blocks = double (*)(const BlockRanges&);
using Scores = std::optional<double> (*)(const ScoreSums&);

using Rows = std::vector<StatisticDescription>;

// Statistics of the high-precision tensor: moments and norms.
Rows tensor_values() {
  return {
      {.name = "min",
       .doc = "smallest element; an Inf counts, a NaN makes it NaN",
       .finish = Tensor([](const auto& sums) { return sums.nan > 0 ? kNan : sums.min; }),
       .worse = Worse::away_from_zero},
      {.name = "max",
       .doc = "largest element; an Inf counts, a NaN makes it NaN",
       .finish = Tensor([](const auto& sums) { return sums.nan > 0 ? kNan : sums.max; })},
      {.name = "mean",
       .doc = "arithmetic mean",
       .finish = Tensor([](const auto& sums) {
         return with_infinities(sums, sums.sum / static_cast<double>(sums.numel));
       }),
       .worse = Worse::away_from_zero},
      {.name = "std",
       .doc = "unbiased standard deviation; NaN with a NaN or Inf, and for a single element",
       .finish = Tensor(standard_deviation)},
      {.name = "kurtosis",
       .doc = "mean of (x - mean)^4 over the squared mean of (x - mean)^2: 3 for a normal "
              "distribution; NaN with a NaN or Inf, and of equal elements",
       .finish = Tensor(kurtosis),
       .needs = Needs::moments},
      {.name = "l1_norm", .doc = "sum of |x|", .finish = Tensor([](const auto& sums) {
                                                 return with_infinite_magnitudes(sums, sums.l1);
                                               })},
      {.name = "l2_norm",
       .doc = "square root of the sum of x^2",
       .finish = Tensor([](const auto& sums) {
         return with_infinite_magnitudes(sums, std::sqrt(sums.sum_squares));
       })},
      {.name = "rms",
       .doc = "root of the mean of x^2",
       .finish = Tensor([](const auto& sums) {
         const double mean_square = sums.sum_squares / static_cast<double>(sums.numel);
         return with_infinite_magnitudes(sums, std::sqrt(mean_square));
       })},
  };
}

// Counts of elements of the high-precision tensor by kind.
Rows tensor_counts() {
  return {
      {.name = "numel",
       .doc = "number of elements",
       .finish = Tensor([](const auto& sums) { return static_cast<double>(sums.numel); }),
       .kind = StatisticKind::count},
      {.name = "nan",
       .doc = "how many are NaN",
       .finish = Tensor([](const auto& sums) { return static_cast<double>(sums.nan); }),
       .kind = StatisticKind::counter,
       .worse = Worse::any},
      {.name = "posinf",
       .doc = "how many are +Inf",
       .finish = Tensor([](const auto& sums) { return static_cast<double>(sums.posinf); }),
       .kind = StatisticKind::counter,
       .worse = Worse::any},
      {.name = "neginf",
       .doc = "how many are -Inf",
       .finish = Tensor([](const auto& sums) { return static_cast<double>(sums.neginf); }),
       .kind = StatisticKind::counter,
       .worse = Worse::any},
      {.name = "zeros",
       .doc = "how many are 0, of either sign",
       .finish = Tensor([](const auto& sums) { return static_cast<double>(sums.zeros); }),
       .kind = StatisticKind::counter},
      {.name = "zeros%",
       .doc = "elements that are 0, of either sign",
       .finish = Tensor([](const auto& sums) { return percent(sums.zeros, sums.numel); })},
      {.name = "subnormals",
       .doc = "how many are subnormal in the tensor's own dtype",
       .finish = Tensor([](const auto& sums) { return static_cast<double>(sums.subnormals); }),
       .kind = StatisticKind::counter},
      {.name = "nonfinite",
       .doc = "nan + posinf + neginf",
       .finish = Tensor([](const auto& sums) {
         return static_cast<double>(sums.nan + sums.posinf + sums.neginf);
       }),
       .kind = StatisticKind::counter,
       .worse = Worse::any,
       .panel = {.place = 1, .only_above_zero = true}},
  };
}

// Ratios of the largest and smallest magnitudes of the high-precision tensor.
Rows tensor_ranges() {
  return {
      {.name = "cur_amax", .doc = "max |x|", .finish = Tensor(amax), .panel = {.place = 5}},
      {.name = "dynamic_range",
       .doc = "log2 of amax over the smallest nonzero |x|",
       .finish = Tensor(dynamic_range)},
      {.name = "max_blockwise_dynamic_range",
       .doc = "dynamic_range of the block that has the largest, written as a mapping: "
              "{max_blockwise_dynamic_range: {block_size: 32, dims: 1 or 2}}",
       .finish = Blocks(max_blockwise_dynamic_range)},
  };
}

// Statistics of a cast, as percentages of the elements or as counts.
Rows cast_statistics() {
  return {
      {.name = "underflows%",
       .doc = "nonzero elements that became zero",
       .finish = Cast([](const auto& sums) { return percent(sums.underflows, sums.numel); }),
       .panel = {.place = 3}},
      {.name = "overflows%",
       .doc = "elements beyond the largest value",
       .finish = Cast([](const auto& sums) { return percent(sums.overflows, sums.numel); }),
       .panel = {.place = 2, .only_above_zero = true}},
      {.name = "saturated",
       .doc = "how many the cast clipped",
       .finish = Cast([](const auto& sums) { return static_cast<double>(sums.saturated); }),
       .kind = StatisticKind::counter},
      {.name = "scale_inv_min",
       .doc = "smallest 1 / scale",
       .finish = Cast([](const auto& sums) { return sums.scale_inv_min; }),
       .needs = Needs::codes},
      {.name = "scale_inv_max",
       .doc = "largest 1 / scale",
       .finish = Cast([](const auto& sums) { return sums.scale_inv_max; }),
       .needs = Needs::codes},
      {.name = "mse",
       .doc = "mean of (decoded - x)^2",
       .finish = Cast(
           [](const auto& sums) { return sums.squared_error / static_cast<double>(sums.numel); }),
       .panel = {.place = 4}},
  };
}

// Statistics of a per-tensor scale: hooks/statistics/scales.h.
Rows scale_statistics() {
  return {
      {.name = "scale_staleness",
       .doc = "log2(amax / the amax that the scale stands for, largest value / scale / 2^margin)",
       .finish = Scale([](const auto& sums) { return known(sums.fits, sums.staleness); })},
      {.name = "scale_headroom",
       .doc = "log2(largest value / scale / amax)",
       .finish = Scale([](const auto& sums) { return known(sums.fits, sums.headroom); }),
       .worse = Worse::below_zero},
      {.name = "stale_saturated%",
       .doc = "finite elements that the cast clipped",
       .finish = Scale([](const auto& sums) {
         return known(sums.elements, percent(sums.clipped, sums.elements));
       })},
      {.name = "scale_jump",
       .doc = "log2(scale / scale of the last observed iteration)",
       .finish = Scale([](const auto& sums) { return known(sums.jumps, sums.jump); }),
       .worse = Worse::away_from_zero},
      {.name = "scale_age",
       .doc = "iterations since the last observed one that saw the amax history updated",
       .finish =
           Scale([](const auto& sums) { return known(sums.ages, static_cast<double>(sums.age)); }),
       .needs = Needs::history},
  };
}

// Statistics of a GEMM; features/gemm_error computes them.
Rows gemm_statistics() {
  return {
      {.name = "gemm_relative_error", .doc = "|out - exact| / |exact|, norms over the sample"},
      {.name = "gemm_mean_error",
       .doc = "mean of out - exact, over the mean of |exact|: a bias",
       .worse = Worse::away_from_zero},
      {.name = "gemm_cosine",
       .doc = "cosine of the angle between out and exact",
       .worse = Worse::below_one},
  };
}

// Statistics of an attention's scores: core/ops/statistics_layout.h.
Rows score_statistics() {
  return {
      {.name = "attention_entropy",
       .doc = "for `scores`: mean entropy of the softmax of a query that sees two keys or more, "
              "in nats",
       .finish = Scores([](const auto& sums) { return mean_of_rows(sums, sums.entropy); }),
       .worse = Worse::below_one},
      {.name = "attention_entropy%",
       .doc = "for `scores`: attention_entropy in percent of the largest possible value, "
              "log(visible keys)",
       .finish = Scores([](const auto& sums) { return mean_of_rows(sums, 100 * sums.share); }),
       .worse = Worse::below_one},
      {.name = "one_key%",
       .doc = "for `scores`: queries whose softmax gives a key more than 99 %, among queries "
              "that see two or more",
       .finish = Scores([](const auto& sums) {
         return mean_of_rows(sums, 100 * static_cast<double>(sums.one_key));
       })},
      {.name = "first_key%",
       .doc = "for `scores`: like one_key%, if the key is the first one that the query sees: an "
              "attention sink",
       .finish = Scores([](const auto& sums) {
         return mean_of_rows(sums, 100 * static_cast<double>(sums.first_key));
       })},
      {.name = "undefined%",
       .doc = "for `scores`: queries whose softmax is undefined, because they see NaN, +Inf, or "
              "only -Inf",
       .finish = Scores([](const auto& sums) { return percent_of_rows(sums, sums.nonfinite); }),
       .worse = Worse::any},
      {.name = "blind%",
       .doc = "for `scores`: queries that see no key: a mask, padding or a bias of -Inf hides "
              "every key",
       .finish = Scores([](const auto& sums) { return percent_of_rows(sums, sums.blind); })},
  };
}

// In the order of the documentation.
Rows make_rows() {
  Rows rows;
  for (Rows part : {tensor_values(), tensor_counts(), tensor_ranges(), cast_statistics(),
                    scale_statistics(), gemm_statistics(), score_statistics()}) {
    std::ranges::move(part, std::back_inserter(rows));
  }
  for (StatisticDescription& row : rows) row.owner = "telens";
  return rows;
}

template <typename Sums>
auto finish_function(StatisticId statistic, std::string_view source) {
  using Value =
      std::conditional_t<std::is_same_v<Sums, ScaleSums> || std::is_same_v<Sums, ScoreSums>,
                         std::optional<double>, double>;
  const auto* function = std::get_if<Value (*)(const Sums&)>(&statistic->finish);
  if (function == nullptr) {
    raise<InternalError>("statistic {} is not one of {}", statistic->name, source);
  }
  return *function;
}

}  // namespace

std::span<const StatisticDescription> builtin_statistics() {
  static const auto& rows = *new Rows(make_rows());  // for threads that outlast static objects
  return rows;
}

StatisticId find_statistic(std::string_view name) {
  const auto rows = builtin_statistics();
  const auto found = std::ranges::find(rows, name, &StatisticDescription::name);
  return found == rows.end() ? nullptr : &*found;
}

StatisticId statistic(std::string_view name) {
  const StatisticId found = find_statistic(name);
  if (found == nullptr) raise<InternalError>("unknown statistic '{}'", name);
  return found;
}

std::vector<StatisticId> statistics_from(StatisticSource source) {
  std::vector<StatisticId> statistics;
  for (const StatisticDescription& row : builtin_statistics()) {
    if (row.source() == source) statistics.push_back(&row);
  }
  return statistics;
}

const std::vector<StatisticId>& counters_from(StatisticSource source) {
  const auto counters = [](StatisticSource of) {
    std::vector<StatisticId> statistics = statistics_from(of);
    std::erase_if(statistics,
                  [](StatisticId each) { return each->kind != StatisticKind::counter; });
    return statistics;
  };
  using Ids = std::vector<StatisticId>;
  static const auto& of_tensor = *new Ids(counters(StatisticSource::tensor));
  static const auto& of_cast = *new Ids(counters(StatisticSource::cast));
  return source == StatisticSource::tensor ? of_tensor : of_cast;
}

std::vector<std::string> get_names(std::span<const StatisticId> statistics) {
  std::vector<std::string> names;
  for (const StatisticId each : statistics) names.push_back(each->name);
  return names;
}

double finish(StatisticId statistic, const TensorSums& sums) {
  const auto function = finish_function<TensorSums>(statistic, "the high-precision tensor");
  const bool is_empty = sums.numel == 0 && statistic->kind == StatisticKind::value;
  return is_empty ? kNan : function(sums);
}

double finish(StatisticId statistic, const CastSums& sums) {
  const auto function = finish_function<CastSums>(statistic, "a cast");
  const bool is_empty = sums.numel == 0 && statistic->kind == StatisticKind::value;
  return is_empty ? kNan : function(sums);
}

std::optional<double> finish(StatisticId statistic, const ScaleSums& sums) {
  return finish_function<ScaleSums>(statistic, "a scale")(sums);
}

double finish(StatisticId statistic, const BlockRanges& ranges) {
  return finish_function<BlockRanges>(statistic, "blocks")(ranges);
}

std::optional<double> finish(StatisticId statistic, const ScoreSums& sums) {
  return finish_function<ScoreSums>(statistic, "an attention's scores")(sums);
}

double amax(const TensorSums& sums) {
  return sums.nan > 0 ? kNan : larger(std::abs(sums.min), std::abs(sums.max));
}

}  // namespace telens
