#include "analysis/rules/loss_level.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <span>

#include "analysis/baseline.h"

namespace telens::analysis {
namespace {

constexpr std::size_t kSteps = 8;
constexpr double kLeastRise = 0.2;  // part of the median before

std::vector<double> get_values(std::span<const Point> points) {
  std::vector<double> values;
  for (const Point& point : points) values.push_back(point.value);
  return values;
}

}  // namespace

std::optional<LossRise> first_rise_that_stays(const std::vector<Point>& all) {
  std::vector<Point> losses;
  std::ranges::copy_if(all, std::back_inserter(losses),
                       [](const Point& point) { return std::isfinite(point.value); });
  for (std::size_t i = kSteps; i + kSteps <= losses.size(); ++i) {
    if (losses[i].value <= losses[i - 1].value) continue;
    const std::span<const Point> before = std::span(losses).subspan(i - kSteps, kSteps);
    const std::span<const Point> after = std::span(losses).subspan(i, kSteps);
    const double largest = std::ranges::max(before, {}, &Point::value).value;
    const double smallest = std::ranges::min(after, {}, &Point::value).value;
    if (smallest <= largest) continue;
    const double usual = median(get_values(before));
    const double now = median(get_values(after));
    if (now - usual < kLeastRise * std::abs(usual)) continue;
    return LossRise{losses[i].iteration, usual, now, largest, smallest};
  }
  return std::nullopt;
}

}  // namespace telens::analysis
