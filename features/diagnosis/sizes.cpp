#include "features/diagnosis/sizes.h"

#include <algorithm>
#include <cmath>

namespace telens::diagnosis {
namespace {

constexpr std::int64_t kSettling = 3;  // points

double settled(const Series& series, const Shift& shift) {
  const auto first = std::ranges::lower_bound(series.points, shift.first, {}, &Point::iteration);
  const auto sizes = [](auto begin, auto end) {
    std::vector<double> values;
    for (; begin != end; ++begin) values.push_back(bits(begin->value));
    return values;
  };
  const auto before = std::min(kSettling, first - series.points.begin());
  const auto after = std::min(kSettling, series.points.end() - first);
  return median(sizes(first, first + after)) - median(sizes(first - before, first));
}

template <typename Combine>
std::vector<Series> combined(const Facts& facts, TensorName tensor, std::string_view first,
                             std::string_view second, const Combine& combine) {
  std::vector<Series> all;
  for (const Series* a : facts.with(first)) {
    if (a->place.tensor != tensor) continue;
    const Series* b = facts.beside(*a, second);
    if (b == nullptr) continue;
    Series series{.place = a->place};
    for (const Point& point : a->points) {
      const auto other = b->at(point.iteration);
      if (other) series.points.push_back({point.iteration, combine(point.value, *other)});
    }
    all.push_back(std::move(series));
  }
  return all;
}

double root_mean_square(double norm, double count) {
  return count > 0 ? norm / std::sqrt(count) : 0;
}

}  // namespace

std::vector<Series> root_mean_squares(const Facts& facts, TensorName tensor) {
  return combined(facts, tensor, "l2_norm", "numel", root_mean_square);
}

std::vector<Series> crest_factors(const Facts& facts, TensorName tensor) {
  std::vector<Series> all = root_mean_squares(facts, tensor);
  for (Series& series : all) {
    const Series* amax = facts.beside(series, "cur_amax");
    for (Point& point : series.points) {
      const auto largest = amax != nullptr ? amax->at(point.iteration) : std::nullopt;
      point.value = largest && point.value > 0 ? *largest / point.value : 1;
    }
  }
  return all;
}

double crest_change(const Facts& facts, const Place& place, const Shift& shift) {
  const Series* amax = facts.find(place, "cur_amax");
  const Point* before = amax != nullptr ? amax->before(shift.first) : nullptr;
  const auto now = amax != nullptr ? amax->at(shift.first) : std::nullopt;
  if (before == nullptr || !now) return 0;
  return (bits(*now) - bits(before->value)) - (bits(shift.value) - bits(shift.usual));
}

std::vector<std::vector<PlaceShift>> shifts_together(std::span<const Series> sizes, int sign,
                                                     const ShiftOptions& options) {
  std::vector<PlaceShift> all;
  for (const Series& series : sizes) {
    const auto shift = first_shift(series.points, options);
    if (!shift || shift->bits * sign < 0) continue;
    all.push_back({series.place, *shift, settled(series, *shift)});
  }
  std::ranges::stable_sort(all, {}, [](const PlaceShift& each) { return each.shift.first; });
  std::vector<std::vector<PlaceShift>> together;
  for (PlaceShift& each : all) {
    if (together.empty() || each.shift.first > together.back().front().shift.first + 1) {
      together.emplace_back();
    }
    together.back().push_back(std::move(each));
  }
  for (auto& group : together) {
    std::ranges::stable_sort(group, {}, [](const PlaceShift& each) {
      return std::pair(each.shift.first, turn_of(each.place));
    });
  }
  return together;
}

bool comes_from_loss(std::span<const PlaceShift> together, std::span<const Series> gradients) {
  // Gradients come in backward order: the first one is next to the loss.
  return together.size() > 1 && together.front().place == gradients.front().place;
}

}  // namespace telens::diagnosis
