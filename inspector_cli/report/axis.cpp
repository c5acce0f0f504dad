#include "inspector_cli/report/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "hooks/statistics/statistic_name.h"

namespace telens::cli {
namespace {

// A linear axis of eight rows with four dots each, or of 150 pixels, hides values below a thirtieth
// of the largest one.
constexpr double kDwarfed = 30;
constexpr double kThreeDecades = 1e3;
// Symlog's linear part covers the smallest tenth of the values, but ends at this fraction of the
// largest value at the latest.
constexpr double kLinearPart = 0.1;
constexpr double kLeastThreshold = 1e-8;

std::vector<double> finite_values(const std::vector<Line>& lines) {
  std::vector<double> values;
  for (const Line& line : lines) {
    for (const Bin& bin : line.bins) {
      if (bin.drawn()) values.push_back(bin.value());
    }
  }
  return values;
}

// The limit is a tenth of the resolution of labels (six digits) and far above double precision.
bool differ_only_by_rounding(double low, double high) {
  return high / 2 - low / 2 <= 1e-7 * std::max(std::abs(low), std::abs(high));
}

// Returns at least the smallest normal double, because pow underflows to 0 for subnormals.
double power_of_ten_below(double value) {
  return std::max(std::pow(10, std::floor(std::log10(value))), std::numeric_limits<double>::min());
}

}  // namespace

Axis::Axis(const std::vector<Line>& lines) {
  const std::vector<double> values = finite_values(lines);
  if (values.empty()) return;
  const auto [lowest, highest] = std::ranges::minmax_element(values);
  low_ = *lowest;
  high_ = *highest;
  if (differ_only_by_rounding(low_, high_)) {  // a constant is drawn relative to zero
    low_ = std::min(low_, 0.0);
    high_ = std::max(high_, 0.0);
    return;
  }
  std::vector<double> sizes;
  for (const double value : values) {
    if (value != 0) sizes.push_back(std::abs(value));
  }
  if (sizes.empty()) return;
  std::ranges::sort(sizes);
  const bool dwarfs = sizes.back() > kDwarfed * sizes[(sizes.size() - 1) / 2];
  if (low_ > 0 && (dwarfs || high_ > kThreeDecades * low_)) {
    kind_ = Kind::logarithmic;
  } else if (low_ <= 0 && dwarfs) {
    kind_ = Kind::symlog;
    const auto tenth = static_cast<std::size_t>(kLinearPart * static_cast<double>(sizes.size()));
    threshold_ = power_of_ten_below(std::max(sizes[tenth], sizes.back() * kLeastThreshold));
  } else if (low_ > 0 && low_ < high_ / 2) {
    low_ = 0;
  }
}

Axis Axis::of_map(std::string_view statistic, const std::vector<Line>& lines) {
  constexpr double kPale = 0.1;  // % of the elements, a tenth of the notable share
  const auto name = parse_statistic_name(statistic);
  const bool is_share =
      name && (name->statistic->name == "overflows%" || name->statistic->name == "underflows%");
  return is_share ? of_percentages(kPale) : Axis(lines);
}

Axis Axis::of_percentages(double threshold) {
  Axis axis;
  axis.kind_ = Kind::symlog;
  axis.high_ = 100;
  axis.threshold_ = threshold;
  axis.is_absolute_ = true;
  return axis;
}

double Axis::stretched(double value) const {
  if (kind_ == Kind::linear) return value;
  if (kind_ == Kind::logarithmic) return std::log10(value);
  const double size = std::abs(value) / threshold_;
  return std::copysign(size <= 1 ? size : 1 + std::log10(size), value);
}

double Axis::unstretched(double stretched) const {
  if (kind_ == Kind::linear) return stretched;
  if (kind_ == Kind::logarithmic) return std::pow(10, stretched);
  const double size = std::abs(stretched);
  return std::copysign(threshold_ * (size <= 1 ? size : std::pow(10, size - 1)), stretched);
}

double Axis::place(double value) const {
  if (!(high_ > low_)) return high_ > 0 ? 1 : 0;
  // Halves prevent overflow: the span of two doubles may be infinite.
  const double low = stretched(low_) / 2;
  return std::clamp((stretched(value) / 2 - low) / (stretched(high_) / 2 - low), 0.0, 1.0);
}

double Axis::value_at(double place) const {
  if (place <= 0) return low_;
  if (place >= 1) return high_;
  return unstretched((1 - place) * stretched(low_) + place * stretched(high_));
}

std::string Axis::note() const {
  switch (kind_) {
    case Kind::linear:
      break;
    case Kind::logarithmic:
      return "logarithmic";
    case Kind::symlog:
      return low_ < 0 ? fmt::format("linear within ±{:g}, logarithmic beyond", threshold_)
                      : fmt::format("linear up to {:g}, logarithmic above", threshold_);
  }
  return "";
}

std::string Axis::short_note() const {
  switch (kind_) {
    case Kind::linear:
      break;
    case Kind::logarithmic:
      return "log";
    case Kind::symlog:
      return fmt::format("log {}{:g}", low_ < 0 ? "beyond ±" : "above ", threshold_);
  }
  return "";
}

std::vector<double> Axis::tick_values() const {
  constexpr int kMostTicks = 6;
  std::vector<double> values;
  if (kind_ == Kind::linear) {
    const double step = round_step(high_ / (kMostTicks - 1) - low_ / (kMostTicks - 1));
    const double first = std::ceil(low_ / step);
    for (int i = 0; i <= kMostTicks && (first + i) * step <= high_; ++i) {
      values.push_back((first + i) * step);
    }
    return values;
  }
  // Powers of ten, or every n-th one if there are many. Adds multiples of 2 and 5 if there are few.
  const double nearest = kind_ == Kind::symlog ? threshold_ : low_;
  const double first = std::floor(std::log10(nearest));
  const double last = std::log10(std::max(std::abs(low_), std::abs(high_)));
  const double room = low_ < 0 ? kMostTicks / 2.0 : kMostTicks;
  const double every = std::max(1.0, std::ceil((last - first) / room));
  const bool few = last - first < 2;
  if (kind_ == Kind::symlog) values.push_back(0);
  for (double decade = first; decade <= last; decade += every) {
    for (const double times : {1.0, 2.0, 5.0}) {
      if (times > 1 && !few) break;
      values.push_back(times * std::pow(10, decade));
      if (low_ < 0) values.push_back(-values.back());
    }
  }
  std::erase_if(values, [this](double value) { return value < low_ || value > high_; });
  std::ranges::sort(values);
  return values;
}

std::vector<Tick> Axis::ticks() const {
  if (!(high_ > low_)) return {{place(low_), fmt::format("{:.4g}", low_)}};
  std::vector<Tick> ticks;
  for (const double value : tick_values()) {
    ticks.push_back({place(value), fmt::format("{:.6g}", value)});
  }
  return ticks;
}

double round_step(double least) {
  const double power = power_of_ten_below(least);
  for (const double times : {1.0, 2.0, 5.0}) {
    // The tolerance prevents a rounding error from doubling the step.
    if (times * power >= least * (1 - 1e-9)) return times * power;
  }
  return 10 * power;
}

}  // namespace telens::cli
