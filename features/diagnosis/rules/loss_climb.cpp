#include "features/diagnosis/rules/loss_climb.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>

namespace telens::diagnosis {
namespace {

constexpr double kAbove = 0.1;         // part of the largest loss before the climb
constexpr std::ptrdiff_t kStays = 5;   // steps
constexpr std::ptrdiff_t kUsual = 12;  // steps up to the lowest loss
constexpr std::ptrdiff_t kLeastPast = 8;

using Place = std::vector<Point>::const_iterator;

bool all_above(Place begin, double height) {
  return std::all_of(begin, begin + kStays, [&](const Point& point) {
    return point.value > height + kAbove * std::abs(height);
  });
}

double largest(Place begin, Place end) {
  return std::ranges::max_element(begin, end, {}, &Point::value)->value;
}

// Where a climb begins that has reached `at`: behind the last loss as low as usual.
Place begin_of(Place lowest, Place at, Place first) {
  const double usual = largest(lowest - std::min(kUsual - 1, lowest - first), lowest + 1);
  while (at > lowest + 1 && (at - 1)->value > usual) --at;
  return at;
}

}  // namespace

std::optional<LossClimb> first_climb(const std::vector<Point>& all) {
  std::vector<Point> losses;
  std::ranges::copy_if(all, std::back_inserter(losses),
                       [](const Point& point) { return std::isfinite(point.value); });
  const Place first = losses.begin();
  Place lowest = first;
  double height = first == losses.end() ? 0 : first->value;  // up to the lowest
  double highest = height;                                   // of all so far
  for (Place at = first; losses.end() - at >= kStays; ++at) {
    if (lowest - first >= kLeastPast && all_above(at, height)) {
      const Place begin = begin_of(lowest, at, first);
      if (all_above(at, largest(first, begin))) return LossClimb{*lowest, *begin, *at};
    }
    highest = std::max(highest, at->value);
    if (at->value > lowest->value) continue;
    lowest = at;
    height = highest;
  }
  return std::nullopt;
}

}  // namespace telens::diagnosis
