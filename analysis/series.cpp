#include "analysis/series.h"

#include <algorithm>

namespace telens::analysis {

StepOrder get_order_in_step(const Place& place) {
  if (!place.tensor) return {0, place.layer, -1};
  const auto [backward, order] = get_order_in_step(*place.tensor);
  return {backward ? 1 : 0, backward ? -place.layer : place.layer, order};
}

std::optional<double> Series::at(std::int64_t iteration) const {
  const auto found = std::ranges::lower_bound(points, iteration, {}, &Point::iteration);
  if (found == points.end() || found->iteration != iteration) return std::nullopt;
  return found->value;
}

const Point* Series::before(std::int64_t iteration) const {
  const auto found = std::ranges::lower_bound(points, iteration, {}, &Point::iteration);
  return found == points.begin() ? nullptr : &*std::prev(found);
}

}  // namespace telens::analysis
