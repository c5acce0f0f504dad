#include "analysis/sizes.h"

#include <algorithm>
#include <cmath>

namespace telens::analysis {
namespace {

constexpr std::int64_t kSettling = 3;  // points

// The statistics that the root mean square of a tensor comes from.
struct SizeSources {
  const Series* norm = nullptr;
  const Series* count = nullptr;
  const Series* mean = nullptr;
  const Series* deviation = nullptr;

  SizeSources(const Facts& facts, const Place& place)
      : norm(facts.find(place, "l2_norm")),
        count(facts.find(place, "numel")),
        mean(facts.find(place, "mean")),
        deviation(facts.find(place, "std")) {}

  std::optional<double> at(std::int64_t iteration) const {
    const auto value = [&](const Series* series) {
      return series != nullptr ? series->at(iteration) : std::nullopt;
    };
    const auto n = value(norm);
    const auto elements = value(count);
    if (n && elements) return *elements > 0 ? *n / std::sqrt(*elements) : 0;
    const auto m = value(mean);
    const auto d = value(deviation);
    return m && d ? std::optional(std::hypot(*m, *d)) : std::nullopt;
  }
};

// `statistic`: of the tensor whose sizes are wanted.
Series sizes_beside(const Facts& facts, const Series& statistic) {
  Series sizes{.place = statistic.place};
  const SizeSources sources(facts, statistic.place);
  for (const auto& [iteration, value] : statistic.points) {
    if (const auto exact = sources.at(iteration)) sizes.points.push_back({iteration, *exact});
  }
  if (sizes.points.empty()) sizes.points = statistic.points;
  return sizes;
}

}  // namespace

double settled_bits(const Series& series, const Shift& shift, std::int64_t delay) {
  const auto first = std::ranges::lower_bound(series.points, shift.first, {}, &Point::iteration);
  const auto sizes = [](auto begin, auto end) {
    std::vector<double> values;
    for (; begin != end; ++begin) values.push_back(bits(begin->value));
    return values;
  };
  const auto before = std::min(kSettling, first - series.points.begin());
  const auto begin = first + std::min(delay, series.points.end() - first);
  const auto after = std::min(kSettling, series.points.end() - begin);
  return median(sizes(begin, begin + after)) - median(sizes(first - before, first));
}

std::optional<double> root_mean_square(const Facts& facts, const Place& place,
                                       std::int64_t iteration) {
  return SizeSources(facts, place).at(iteration);
}

std::vector<Series> root_mean_squares(const Facts& facts, TensorName tensor) {
  std::vector<Series> all;
  for (const Series* norm : facts.with("l2_norm")) {
    if (norm->place.tensor == tensor) all.push_back(sizes_beside(facts, *norm));
  }
  for (const Series* deviation : facts.with("std")) {
    if (deviation->place.tensor != tensor) continue;
    if (facts.beside(*deviation, "l2_norm") == nullptr) {
      all.push_back(sizes_beside(facts, *deviation));
    }
  }
  std::ranges::stable_sort(all, {}, [](const Series& series) {
    return std::pair(get_order_in_step(series.place), series.place.rank);
  });
  return all;
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
    all.push_back({series.place, *shift, settled_bits(series, *shift)});
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
      return std::pair(each.shift.first, get_order_in_step(each.place));
    });
  }
  return together;
}

bool comes_from_loss(std::span<const PlaceShift> together, std::span<const Series> gradients) {
  // Gradients come in backward order: the first one is next to the loss.
  return together.size() > 1 && together.front().place == gradients.front().place;
}

}  // namespace telens::analysis
