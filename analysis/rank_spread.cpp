#include "analysis/rank_spread.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/base/error.h"

namespace telens::analysis {
namespace {

constexpr std::size_t kMostStatistics = 1 << 22;  // 100 bytes each

// Standard deviation of a normal distribution, in units of its mean or median absolute deviation
// from the median.
constexpr double kOfMeanDeviation = 1.253314;    // sqrt(pi / 2)
constexpr double kOfMedianDeviation = 1.482602;  // 1 / the third quartile

// Halves before adding, because the sum of two large numbers may overflow.
double exact_median(std::vector<double> values) {
  if (values.empty()) return std::nan("");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 == 1) return *middle;
  return *std::max_element(values.begin(), middle) / 2 + *middle / 2;
}

// The median over the ranks' means, and the robust scale of their distances from it.
class Spread {
 public:
  explicit Spread(const std::vector<double>& means) : median_(exact_median(means)) {
    std::vector<double> distances;
    double sum = 0;
    for (const double mean : means) {
      distances.push_back(std::abs(mean - median_));
      sum += distances.back() / static_cast<double>(means.size());
    }
    const double of_median = kOfMedianDeviation * exact_median(distances);
    scale_ = of_median > 0 ? of_median : kOfMeanDeviation * sum;
  }

  double median_of_means() const { return median_; }
  // Returns 0 if the difference of very large numbers is NaN.
  double deviation(double mean) const {
    const double deviation = (mean - median_) / scale_;
    return std::isnan(deviation) ? 0 : deviation;
  }

 private:
  double median_;
  double scale_ = 0;
};

// Two ranks have the same distance from their median, so their relative difference is used instead.
void compare_with_other(RankStatistic& own, const std::vector<double>& means) {
  const double other = own.mean == means[0] ? means[1] : means[0];
  const double larger = std::max(std::abs(own.mean), std::abs(other));
  own.difference = own.mean - other;
  // Divides before subtracting, because the difference of very large numbers may overflow.
  own.apart = larger > 0 ? std::abs(own.mean / larger - other / larger) : 0;
}

class RankSpread {
 public:
  void add(int rank, std::span<const record::Record> records);
  std::vector<RankStatistic> outliers_first() const;

 private:
  struct Values {
    std::int64_t records = 0;
    std::int64_t finite = 0;
    double lowest = 0;
    double highest = 0;
    double mean = 0;
    void add(double value);
  };

  std::unordered_map<SeriesKey, std::map<int, Values>, SeriesHash> series_;
  std::size_t count_ = 0;
};

void RankSpread::Values::add(double value) {
  ++records;
  if (!std::isfinite(value)) return;
  lowest = finite == 0 ? value : std::min(lowest, value);
  highest = finite == 0 ? value : std::max(highest, value);
  ++finite;
  const auto count = static_cast<double>(finite);
  mean += value / count - mean / count;
}

void RankSpread::add(int rank, std::span<const record::Record> records) {
  for (const record::Record& each : records) {
    auto& ranks = series_[{each.layer, each.tensor, each.gemm, each.statistic}];
    const auto [place, is_new] = ranks.try_emplace(rank);
    if (is_new && ++count_ > kMostStatistics) {
      raise<UsageError>(
          "--by rank: more than {} courses (a statistic of a tensor on a rank); ask for fewer with "
          "--layer, --tensor or --stat",
          kMostStatistics);
    }
    place->second.add(each.value);
  }
}

std::vector<RankStatistic> RankSpread::outliers_first() const {
  std::vector<RankStatistic> statistics;
  for (const auto& [key, ranks] : series_) {
    std::vector<double> means;
    std::size_t not_finite = 0;
    for (const auto& [rank, values] : ranks) {
      if (values.finite > 0) means.push_back(values.mean);
      if (values.finite < values.records) ++not_finite;
    }
    const Spread spread(means);
    for (const auto& [rank, values] : ranks) {
      RankStatistic own{.key = key,
                        .rank = rank,
                        .records = values.records,
                        .nonfinite = values.records - values.finite,
                        .lowest = values.lowest,
                        .highest = values.highest,
                        .mean = values.mean,
                        .median_of_ranks = {},
                        .of_two = ranks.size() == 2};
      if (own.of_two) own.deviation.reset();
      if (!means.empty()) own.median_of_ranks = spread.median_of_means();
      if (own.of_two && values.finite > 0 && means.size() == 2) {
        compare_with_other(own, means);
      } else if (!own.of_two && values.finite > 0) {
        own.deviation = spread.deviation(values.mean);
        own.apart = std::abs(*own.deviation);
      }
      own.alone_not_finite = own.nonfinite > 0 && 2 * not_finite < ranks.size();
      statistics.push_back(own);
    }
  }
  const auto place = [](const RankStatistic& own) {
    const SeriesKey& key = own.key;
    return std::tuple(!own.alone_not_finite, own.of_two, -own.apart, key.layer, key.tensor,
                      key.gemm, key.statistic, own.rank);
  };
  std::ranges::sort(statistics, {}, place);
  return statistics;
}

}  // namespace

std::vector<RankStatistic> list_rank_statistics(const record::RunReader& run,
                                                const record::RecordQuery& query) {
  RankSpread spread;
  run.read(query, [&](int rank, std::span<const record::Record> some) { spread.add(rank, some); });
  return spread.outliers_first();
}

}  // namespace telens::analysis
