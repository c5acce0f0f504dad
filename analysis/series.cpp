#include "analysis/series.h"

#include <algorithm>

namespace telens::diagnosis {

std::optional<double> Series::at(std::int64_t iteration) const {
  const auto found = std::ranges::lower_bound(points, iteration, {}, &Point::iteration);
  if (found == points.end() || found->iteration != iteration) return std::nullopt;
  return found->value;
}

const Point* Series::before(std::int64_t iteration) const {
  const auto found = std::ranges::lower_bound(points, iteration, {}, &Point::iteration);
  return found == points.begin() ? nullptr : &*std::prev(found);
}

}  // namespace telens::diagnosis
