#include "analysis/rank_spread.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "core/base/error.h"

namespace telens::analysis {
namespace {

constexpr std::size_t kMostCourses = 1 << 22;  // 100 bytes each

// A standard deviation in mean absolute deviations from the median, or in median ones, of a normal
// distribution.
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

// Means of ranks, and how far one of them is from the others.
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

// Both of two ranks are equally far from their median, however far that is.
void compare_with_other(RankCourse& course, const std::vector<double>& means) {
  const double other = course.mean == means[0] ? means[1] : means[0];
  const double larger = std::max(std::abs(course.mean), std::abs(other));
  course.difference = course.mean - other;
  // Divides before subtracting, because the difference of very large numbers may overflow.
  course.apart = larger > 0 ? std::abs(course.mean / larger - other / larger) : 0;
}

}  // namespace

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
    if (is_new && ++courses_ > kMostCourses) {
      raise<UsageError>(
          "--by rank: more than {} courses (a statistic of a tensor on a rank); ask for fewer with "
          "--layer, --tensor or --stat",
          kMostCourses);
    }
    place->second.add(each.value);
  }
}

std::vector<RankCourse> RankSpread::outliers_first() const {
  std::vector<RankCourse> courses;
  for (const auto& [key, ranks] : series_) {
    std::vector<double> means;
    std::size_t not_finite = 0;
    for (const auto& [rank, values] : ranks) {
      if (values.finite > 0) means.push_back(values.mean);
      if (values.finite < values.records) ++not_finite;
    }
    const Spread spread(means);
    for (const auto& [rank, values] : ranks) {
      RankCourse course{.key = key,
                        .rank = rank,
                        .records = values.records,
                        .nonfinite = values.records - values.finite,
                        .lowest = values.lowest,
                        .highest = values.highest,
                        .mean = values.mean,
                        .median_of_ranks = {},
                        .of_two = ranks.size() == 2};
      if (course.of_two) course.deviation.reset();
      if (!means.empty()) course.median_of_ranks = spread.median_of_means();
      if (course.of_two && values.finite > 0 && means.size() == 2) {
        compare_with_other(course, means);
      } else if (!course.of_two && values.finite > 0) {
        course.deviation = spread.deviation(values.mean);
        course.apart = std::abs(*course.deviation);
      }
      course.alone_not_finite = course.nonfinite > 0 && 2 * not_finite < ranks.size();
      courses.push_back(course);
    }
  }
  const auto place = [](const RankCourse& course) {
    const SeriesKey& key = course.key;
    return std::tuple(!course.alone_not_finite, course.of_two, -course.apart, key.layer, key.tensor,
                      key.gemm, key.statistic, course.rank);
  };
  std::ranges::sort(courses, {}, place);
  return courses;
}

std::vector<RankCourse> list_rank_courses(const record::RunReader& run,
                                          const record::RecordQuery& query) {
  RankSpread spread;
  run.read(query, [&](int rank, std::span<const record::Record> some) { spread.add(rank, some); });
  return spread.outliers_first();
}

}  // namespace telens::analysis
