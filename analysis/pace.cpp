#include "analysis/pace.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>

#include "analysis/baseline.h"

namespace telens::analysis {
namespace {

constexpr double kFaster = 2;  // times

std::vector<double> smooth(const std::vector<Point>& points) {
  std::vector<double> smoothed;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const bool is_end = i == 0 || i + 1 == points.size();
    smoothed.push_back(is_end
                           ? points[i].value
                           : median({points[i - 1].value, points[i].value, points[i + 1].value}));
  }
  return smoothed;
}

// The largest value of a window whose ends only move forward.
class SlidingMaximum {
 public:
  void add(std::size_t index, double value) {
    while (!candidates_.empty() && candidates_.back().value <= value) candidates_.pop_back();
    candidates_.push_back({index, value});
  }
  void drop_before(std::size_t index) {
    while (!candidates_.empty() && candidates_.front().index < index) candidates_.pop_front();
  }
  double get() const { return candidates_.front().value; }

 private:
  struct Candidate {
    std::size_t index = 0;
    double value = 0;
  };
  std::deque<Candidate> candidates_;
};

}  // namespace

Pace::Pace(const std::vector<Point>& points) {
  const std::vector<double> values = smooth(points);
  SlidingMaximum largest, largest_negated;
  std::size_t begin = 0;
  std::size_t end = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const auto at = [&](std::size_t index) { return static_cast<double>(points[index].iteration); };
    const double early = at(i) > 0 ? at(i) / kFaster : at(i);
    const double late = at(i) > 0 ? at(i) * kFaster : at(i);
    for (; end < points.size() && at(end) <= late; ++end) {
      largest.add(end, values[end]);
      largest_negated.add(end, -values[end]);
    }
    while (at(begin) < early) ++begin;
    largest.drop_before(begin);
    largest_negated.drop_before(begin);
    const double change = std::max(largest.get() - values[i], largest_negated.get() + values[i]);
    changes_.points.push_back({points[i].iteration, change});
  }
}

double Pace::at(std::int64_t iteration) const { return changes_.at(iteration).value_or(0); }

Pace get_pace_of_sizes(const Series& sizes) {
  std::vector<Point> points;
  for (const auto& [iteration, size] : sizes.points) {
    if (size > 0 && std::isfinite(size)) points.push_back({iteration, std::log2(size)});
  }
  return Pace(points);
}

}  // namespace telens::analysis
