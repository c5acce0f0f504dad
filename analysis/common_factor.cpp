#include "analysis/common_factor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "analysis/baseline.h"
#include "analysis/expected_difference.h"

namespace telens::analysis {
namespace {

constexpr std::size_t kLeastIterations = 3;
constexpr std::int64_t kNearby = 2;  // iterations around it in which the third run is compared
// With different seeds, small models differ by up to 0.25 bits in the dgrads of four neighboring
// layers, and by 0.1 bits in all layers.
constexpr double kLeastBits = 0.5;
constexpr double kTimesSteps = 4;
constexpr double kTimesChance = 3;
constexpr double kStandardErrors = 3;
// Standard error of the median of normal values relative to the standard error of their mean:
// sqrt(pi / 2).
const double kErrorOfMedian = std::sqrt(std::acos(-1.0) / 2);

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double log_ratio(double a, double b) {
  const bool known = a > 0 && b > 0 && std::isfinite(a) && std::isfinite(b);
  return known ? std::log2(b / a) : kNone;
}

// Returns the median; for an even count the mean of the two middle values, so that factors and
// their inverses have equal weight. NaN if empty.
double middle(std::vector<double> bits) {
  if (bits.empty()) return kNone;
  std::ranges::sort(bits);
  return (bits[(bits.size() - 1) / 2] + bits[bits.size() / 2]) / 2;
}

double middle_of_known(std::vector<double> bits) {
  std::erase_if(bits, [](double value) { return std::isnan(value); });
  return middle(std::move(bits));
}

// Values in bits for each pair and iteration; NaN if a value is missing.
struct Table {
  std::vector<std::int64_t> iterations;
  std::vector<std::vector<double>> bits;  // by pair

  // Returns the median over the pairs [begin, end); NaN if fewer than half of them are known.
  double common(std::size_t begin, std::size_t end, std::size_t iteration) const {
    std::vector<double> values;
    for (std::size_t i = begin; i < end; ++i) {
      if (!std::isnan(bits[i][iteration])) values.push_back(bits[i][iteration]);
    }
    return 2 * values.size() < end - begin ? kNone : middle(std::move(values));
  }

  std::size_t count_known(std::size_t begin, std::size_t end, std::size_t iteration) const {
    std::size_t known = 0;
    for (std::size_t i = begin; i < end; ++i) known += std::isnan(bits[i][iteration]) ? 0 : 1;
    return known;
  }
};

// Computes `value(pair, a)` for each pair and iteration in which A has the value a.
template <typename Value>
Table make_table(const std::vector<SeriesPair>& pairs, const Value& value) {
  std::set<std::int64_t> all;
  for (const SeriesPair& pair : pairs) {
    for (const Point& point : pair.a->points) all.insert(point.iteration);
  }
  Table table{.iterations = {all.begin(), all.end()}, .bits = {}};
  for (const SeriesPair& pair : pairs) {
    std::vector<double>& row = table.bits.emplace_back();
    for (const std::int64_t iteration : table.iterations) {
      const auto a = pair.a->at(iteration);
      row.push_back(a ? value(pair, Point{iteration, *a}) : kNone);
    }
  }
  return table;
}

// Returns log2(other run / A).
Table make_ratios(const std::vector<SeriesPair>& pairs, const Series* SeriesPair::*other) {
  return make_table(pairs, [&](const SeriesPair& pair, const Point& a) {
    const Series* series = pair.*other;
    const auto value = series != nullptr ? series->at(a.iteration) : std::nullopt;
    return value ? log_ratio(a.value, *value) : kNone;
  });
}

// Returns log2(A / first positive finite value of A).
Table make_levels(const std::vector<SeriesPair>& pairs) {
  Table levels =
      make_table(pairs, [](const SeriesPair&, const Point& a) { return log_ratio(1, a.value); });
  for (std::vector<double>& row : levels.bits) {
    const auto first = std::ranges::find_if(row, [](double level) { return !std::isnan(level); });
    const double begin = first == row.end() ? 0 : *first;
    for (double& level : row) level -= begin;
  }
  return levels;
}

// The changes from one known iteration to the next, in bits.
struct Steps {
  double common = 0;   // the median change that all series have in common
  double scatter = 0;  // the standard deviation of a single series' change

  explicit Steps(const Table& table) {
    std::vector<std::vector<double>> by_iteration(table.iterations.size());
    std::vector<double> all;
    for (const std::vector<double>& row : table.bits) {
      double before = kNone;
      for (std::size_t i = 0; i < row.size(); ++i) {
        if (std::isnan(row[i])) continue;
        if (!std::isnan(before)) {
          by_iteration[i].push_back(row[i] - before);
          all.push_back(row[i] - before);
        }
        before = row[i];
      }
    }
    std::vector<double> commons;
    for (std::vector<double>& steps : by_iteration) {
      if (!steps.empty()) commons.push_back(std::abs(middle(std::move(steps))));
    }
    if (!commons.empty()) common = middle(std::move(commons));
    if (!all.empty()) scatter = spread(all);
  }
};

// Consecutive pairs of the list: [begin, end).
struct Window {
  std::size_t begin = 0, end = 0;
  std::size_t size() const { return end - begin; }
};

// Returns windows of all pairs, then of half of them, a quarter, ...; neighboring windows overlap
// by three quarters.
std::vector<Window> list_windows(std::size_t pairs) {
  std::vector<Window> windows;
  for (std::size_t size = pairs; size >= kLeastPairs; size = size / 2) {
    const std::size_t step = std::max<std::size_t>(1, size / 4);
    for (std::size_t begin = 0; begin + size < pairs; begin += step) {
      windows.push_back({begin, begin + size});
    }
    windows.push_back({pairs - size, pairs});
  }
  return windows;
}

// Returns the window with the largest sum of (value - half), or of (half - value) if `half` is
// negative.
Window largest_sum(const std::vector<double>& values, double half) {
  Window best;
  Window window;
  double sum = 0;
  double largest = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (sum <= 0) {
      window.begin = i;
      sum = 0;
    }
    const double above = values[i] - half;
    if (!std::isnan(above)) sum += half > 0 ? above : -above;
    window.end = i + 1;
    if (sum > largest) {
      largest = sum;
      best = window;
    }
  }
  return best;
}

// Consecutive iterations [first, end) in which a common factor exceeds the tolerance on one side.
// Iterations without a known factor are skipped.
struct Excess {
  std::size_t first = 0, end = 0;
  std::size_t known = 0;
  bool ends = false;  // true if it ends before the last known iteration
};

class Search {
 public:
  Search(const std::vector<SeriesPair>& pairs, const LossFactor& loss_factor, bool other_seeds)
      : pairs_(pairs),
        loss_factor_(loss_factor),
        other_seeds_(other_seeds),
        has_third_(std::ranges::any_of(pairs, &SeriesPair::third)),
        ratios_(make_ratios(pairs, &SeriesPair::b)),
        levels_(make_levels(pairs)),
        // With the same seed and data, the variation of both runs cancels in their ratio.
        steps_(other_seeds || has_third_ ? levels_ : ratios_) {
    if (has_third_) third_ = make_ratios(pairs, &SeriesPair::third);
  }

  std::optional<CommonFactor> find() const {
    std::optional<CommonFactor> earliest;
    for (const Window& window : list_windows(pairs_.size())) {
      const std::vector<double> tolerated = tolerances(window);
      const auto excess = first_excess(window, tolerated);
      if (!excess || (earliest && ratios_.iterations[excess->first] >= earliest->first)) continue;
      CommonFactor found = describe(window, *excess);
      found.tolerance = std::exp2(tolerated[excess->first]);
      if (found.pairs.size() >= kLeastPairs) earliest = std::move(found);
    }
    return earliest;
  }

 private:
  // By iteration.
  std::vector<double> tolerances(const Window& window) const {
    const Pace pace = get_pace(window);
    std::vector<double> all;
    for (std::size_t i = 0; i < ratios_.iterations.size(); ++i) {
      all.push_back(tolerance(window, i) + pace.at(ratios_.iterations[i]));
    }
    return all;
  }

  // Returns the pace of A's common level if the runs have different seeds.
  Pace get_pace(const Window& window) const {
    if (!other_seeds_) return {};
    std::vector<Point> points;
    for (std::size_t i = 0; i < levels_.iterations.size(); ++i) {
      const double level = levels_.common(window.begin, window.end, i);
      if (!std::isnan(level)) points.push_back({levels_.iterations[i], level});
    }
    return Pace(points);
  }

  double tolerance(const Window& window, std::size_t iteration) const {
    double by_format = 0;
    for (std::size_t i = window.begin; i < window.end; ++i) {
      const auto& [a, b, third, error_a, error_b] = pairs_[i];
      const double growth = std::log2((1 + error_b * error_b) / (1 + error_a * error_a)) / 2;
      by_format = std::max(by_format, std::abs(growth));
    }
    const double root =
        std::sqrt(static_cast<double>(ratios_.count_known(window.begin, window.end, iteration)));
    const double least = std::max(kLeastBits * (1 + 1 / root),
                                  kStandardErrors * kErrorOfMedian * steps_.scatter / root);
    return std::hypot(by_format, least, chance(window, iteration)) +
           std::log2(loss_factor_(ratios_.iterations[iteration]));
  }

  double chance(const Window& window, std::size_t iteration) const {
    if (!has_third_) return kTimesSteps * steps_.common;
    double largest = 0;
    for (std::size_t i = 0; i < third_.iterations.size(); ++i) {
      if (third_.iterations[i] > ratios_.iterations[iteration] + kNearby) break;
      const double common = third_.common(window.begin, window.end, i);
      if (!std::isnan(common)) largest = std::max(largest, std::abs(common));
    }
    return kTimesChance * largest;
  }

  std::optional<Excess> first_excess(const Window& window,
                                     const std::vector<double>& tolerances) const {
    Excess excess;
    std::size_t known = 0;
    int side = 0;
    const auto is_long = [&] { return side != 0 && excess.known >= kLeastIterations; };
    for (std::size_t i = 0; i < ratios_.iterations.size(); ++i) {
      if (ratios_.count_known(window.begin, window.end, i) < kLeastPairs) continue;
      const double common = ratios_.common(window.begin, window.end, i);
      if (std::isnan(common)) continue;
      ++known;
      const int now = std::abs(common) <= tolerances[i] ? 0 : common > 0 ? 1 : -1;
      if (now != side) {
        excess.ends = true;
        if (is_long()) return excess;
        excess = {.first = i};
        side = now;
      }
      excess.end = i + 1;
      ++excess.known;
    }
    const bool always = side != 0 && excess.known == known;
    return is_long() || always ? std::optional(excess) : std::nullopt;
  }

  // Returns the median ratios of the pairs over the iterations of the excess; NaN if no ratio is
  // known.
  std::vector<double> usual_ratios(const Excess& excess) const {
    std::vector<double> usual;
    for (const std::vector<double>& row : ratios_.bits) {
      const auto begin = row.begin() + static_cast<std::ptrdiff_t>(excess.first);
      usual.push_back(
          middle_of_known({begin, begin + static_cast<std::ptrdiff_t>(excess.end - excess.first)}));
    }
    return usual;
  }

  // Returns the window that has the factor: the one in which ratios exceed half of the factor by
  // the largest sum.
  CommonFactor describe(const Window& window, const Excess& excess) const {
    const std::vector<double> usual = usual_ratios(excess);
    const double half = middle_of_known({usual.begin() + static_cast<std::ptrdiff_t>(window.begin),
                                         usual.begin() + static_cast<std::ptrdiff_t>(window.end)}) /
                        2;
    const double sign = half > 0 ? 1 : -1;
    const Window with_factor = largest_sum(usual, half);
    CommonFactor found{.origin = with_factor.begin, .first = ratios_.iterations[excess.first]};
    std::vector<double> factors;
    for (std::size_t i = with_factor.begin; i < with_factor.end; ++i) {
      if (!(sign * usual[i] > sign * half)) continue;
      found.pairs.push_back(i);
      factors.push_back(usual[i]);
    }
    if (excess.ends) {
      found.last = ratios_.iterations[excess.end - 1];
    }
    found.factor = std::exp2(middle(std::move(factors)));
    return found;
  }

  const std::vector<SeriesPair>& pairs_;
  const LossFactor& loss_factor_;
  bool other_seeds_ = false;
  bool has_third_ = false;
  Table ratios_;  // of B over A
  Table levels_;  // of A
  Table third_ = {};
  Steps steps_;
};

}  // namespace

std::optional<CommonFactor> find_common_factor(const std::vector<SeriesPair>& pairs,
                                               const LossFactor& loss_factor, bool other_seeds) {
  if (pairs.size() < kLeastPairs) return std::nullopt;
  return Search(pairs, loss_factor, other_seeds).find();
}

}  // namespace telens::analysis
