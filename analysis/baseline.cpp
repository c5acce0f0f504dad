#include "analysis/baseline.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <ranges>

namespace telens::analysis {
namespace {

constexpr double kBitsOfNothing = -200;  // below any FP32 number: 2^-149 is the smallest one
constexpr double kSpreads = 4;
constexpr double kSteps = 3;

// Summary of the last points before a place.
struct Past {
  double usual = 0;
  double spread = 0;        // spread of the changes between points
  double largest_step = 0;  // spikes excluded
};

// Returns the largest distance, or the third largest if there are many: a spike of one point
// consists of two steps.
double largest_but_a_spike(const std::vector<double>& steps) {
  constexpr std::size_t kMany = 8;
  std::vector<double> sizes;
  for (const double step : steps) sizes.push_back(std::abs(step));
  std::ranges::sort(sizes, std::greater());
  if (sizes.empty()) return 0;
  return sizes.size() < kMany ? sizes.front() : sizes[2];
}

Past summarize_past(std::span<const double> values) {
  // Uses the newest points and the variation of their steps, because gradients fall by a factor of
  // 10 at the start of a training.
  constexpr std::size_t kNewest = 5;
  const auto newest = values.last(std::min(kNewest, values.size()));
  Past past{.usual = median({newest.begin(), newest.end()})};
  std::vector<double> steps;
  for (std::size_t i = 1; i < values.size(); ++i) {
    steps.push_back(values[i] - values[i - 1]);
  }
  past.spread = spread(steps);
  past.largest_step = largest_but_a_spike(steps);
  return past;
}

struct Sizes {
  std::vector<Point> points;
  std::vector<double> bits;  // log2 of the values
};

Sizes finite(std::span<const Point> all) {
  Sizes sizes;
  for (const Point& point : all) {
    if (!std::isfinite(point.value)) continue;
    sizes.points.push_back(point);
    sizes.bits.push_back(bits(point.value));
  }
  return sizes;
}

// Returns the number of points from `first` until a ramp is least_bits away from `usual`, or 0
// without a ramp. Each point must be beyond `edge` and not below the previous point. A step that
// recovers a setback counts from the value before the setback.
std::size_t ramp_length(std::span<const double> values, std::size_t first, double edge,
                        double usual, const RampOptions& options) {
  constexpr double kLargestStep = 0.4;  // times least_bits: a larger one is a shift
  const std::size_t end = std::min(values.size(), first + options.within);
  std::size_t highest = first - 1;
  for (std::size_t i = first; i < end; ++i) {
    if (values[i] <= edge) return 0;
    if (i > first && values[i] - values[i - 1] < -options.back) return 0;
    const double step = (values[i] - values[highest]) / static_cast<double>(i - highest);
    if (step > kLargestStep * options.least_bits) return 0;
    if (values[i] > values[highest]) highest = i;
    if (values[i] - usual >= options.least_bits) return i - first + 1;
  }
  return 0;
}

// A factor that is applied again in each iteration gives a straight line in bits. If the line bends
// by a third of the rise, the slow change before the bend belongs to normal training.
std::size_t onset(std::span<const double> values, std::size_t first, std::size_t length) {
  constexpr double kOfRise = 1.0 / 3;
  const std::size_t before = first - 1;
  const double rise = values[before + length] - values[before];
  double deepest = kOfRise * rise;
  std::size_t bend = before;
  for (std::size_t i = 1; i < length; ++i) {
    const double line = rise * static_cast<double>(i) / static_cast<double>(length);
    const double below = line - (values[before + i] - values[before]);
    if (below <= deepest) continue;
    deepest = below;
    bend = before + i;
  }
  return bend + 1;
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

double spread(const std::vector<double>& values) {
  constexpr double kOfNormal = 1.4826;
  const double usual = median(values);
  std::vector<double> distances;
  for (const double value : values) distances.push_back(std::abs(value - usual));
  return kOfNormal * median(std::move(distances));
}

double bits(double size) {
  if (!(size > 0)) return kBitsOfNothing;
  return std::isfinite(size) ? std::max(kBitsOfNothing, std::log2(size)) : -kBitsOfNothing;
}

std::optional<Shift> first_shift(std::span<const Point> all, const ShiftOptions& options) {
  const auto [sizes, values] = finite(all);
  for (std::size_t i = options.least_past; i < values.size(); ++i) {
    const std::size_t begin = i > options.window ? i - options.window : 0;
    const Past past = summarize_past(std::span(values).subspan(begin, i - begin));
    const double away = std::max(options.least_bits, kSpreads * past.spread);
    const auto is_away = [&](std::size_t at, double least) {
      const double distance = values[at] - past.usual;
      return std::abs(distance) >= least && (distance > 0) == (values[i] > past.usual);
    };
    const auto leaves = [&](std::size_t at) { return is_away(at, away); };
    if (!leaves(i)) continue;
    if (std::abs(values[i] - values[i - 1]) < kSteps * past.largest_step) continue;
    std::size_t end = i;
    while (end < values.size() && leaves(end)) ++end;
    const std::size_t stays = end - i;
    // Compare with the median of the window too: after a burst, values return to it.
    const auto window = std::span(values).subspan(begin, i - begin);
    const double from_window = values[i] - median({window.begin(), window.end()});
    const bool beyond =
        from_window * (values[i] - past.usual) > 0 && std::abs(from_window) >= away / 2;
    if (options.passing > 0 && !beyond) continue;
    std::size_t back = end;
    while (back < values.size() && is_away(back, away / 2)) ++back;
    if (back < values.size() && back - i < options.passing) continue;
    // All of these points except one must stay shifted.
    const auto first_points = std::views::iota(i, std::min(values.size(), i + options.passing));
    if (std::ranges::count_if(first_points, std::not_fn(leaves)) > 1) continue;
    // A spike before a shift is not part of it.
    const bool goes_on = stays > 1 && std::abs(values[i + 1] - past.usual) >=
                                          std::abs(values[i] - past.usual) + options.least_bits;
    if (goes_on) continue;
    if (stays < options.sustained) {
      // A shift must be larger if it is cut short by the end of the run or by a non-finite value.
      const auto missing = static_cast<double>(options.sustained - stays);
      const double enough = options.least_bits * (1 + missing / 2);
      if (end < values.size() || std::abs(values[i] - past.usual) < enough) continue;
    }
    return Shift{.first = sizes[i].iteration,
                 .last = sizes[end - 1].iteration,
                 .bits = values[i] - past.usual,
                 .usual = std::exp2(past.usual),
                 .value = sizes[i].value};
  }
  return std::nullopt;
}

std::optional<Shift> first_ramp(std::span<const Point> all, int sign, const RampOptions& options) {
  constexpr double kLeastEdge = 0.03;  // bits beyond the past
  auto [sizes, values] = finite(all);
  for (double& value : values) value *= sign;
  for (std::size_t i = options.least_past; i < values.size(); ++i) {
    const auto past = std::span(values).subspan(i - options.least_past, options.least_past);
    const auto [smallest, largest] = std::ranges::minmax(past);
    if (largest - smallest > options.steady) continue;
    const double edge = largest + std::max(kLeastEdge, (largest - smallest) / 4);
    const double usual = median({past.begin(), past.end()});
    const std::size_t length = ramp_length(values, i, edge, usual, options);
    if (length == 0) continue;
    std::size_t end = i + length;
    while (end < values.size() && values[end] > edge) ++end;
    const Point& reached = sizes[i + length - 1];
    return Shift{.first = sizes[onset(values, i, length)].iteration,
                 .last = sizes[end - 1].iteration,
                 .bits = sign * (values[i + length - 1] - usual),
                 .usual = std::exp2(sign * usual),
                 .value = reached.value};
  }
  return std::nullopt;
}

namespace {

constexpr std::int64_t kSettling = 3;  // points

// The statistics from which the root mean square of a tensor is computed.
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

// Returns the sizes of the tensor that `statistic` belongs to, or `statistic` itself if they are
// unknown.
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
