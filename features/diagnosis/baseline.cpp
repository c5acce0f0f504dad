#include "features/diagnosis/baseline.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace telens::diagnosis {
namespace {

constexpr double kBitsOfNothing = -200;  // below any FP32 number: 2^-149 is the smallest one
constexpr double kSpreads = 4;
constexpr double kSteps = 3;

// Of the last points before a place.
struct Past {
  double usual = 0;
  double spread = 0;
  double largest_step = 0;
};

Past past_of(std::span<const double> values) {
  Past past{.usual = median({values.begin(), values.end()}),
            .spread = spread({values.begin(), values.end()})};
  for (std::size_t i = 1; i < values.size(); ++i) {
    past.largest_step = std::max(past.largest_step, std::abs(values[i] - values[i - 1]));
  }
  return past;
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
  std::vector<Point> sizes;
  std::vector<double> values;
  for (const Point& point : all) {
    if (!std::isfinite(point.value)) continue;
    sizes.push_back(point);
    values.push_back(bits(point.value));
  }
  for (std::size_t i = options.least_past; i < values.size(); ++i) {
    const std::size_t begin = i > options.window ? i - options.window : 0;
    const Past past = past_of(std::span(values).subspan(begin, i - begin));
    const double away = std::max(options.least_bits, kSpreads * past.spread);
    const auto leaves = [&](std::size_t at) {
      const double distance = values[at] - past.usual;
      return std::abs(distance) >= away && (distance > 0) == (values[i] > past.usual);
    };
    if (!leaves(i)) continue;
    if (std::abs(values[i] - values[i - 1]) < kSteps * past.largest_step) continue;
    std::size_t end = i;
    while (end < values.size() && leaves(end)) ++end;
    if (end - i < std::min(options.sustained, values.size() - i)) continue;
    return Shift{.first = sizes[i].iteration,
                 .last = sizes[end - 1].iteration,
                 .bits = values[i] - past.usual,
                 .usual = std::exp2(past.usual),
                 .value = sizes[i].value};
  }
  return std::nullopt;
}

}  // namespace telens::diagnosis
