#include "hooks/step_durations.h"

#include <algorithm>
#include <cmath>

namespace telens {
namespace {

// A median ignores the step that writes a checkpoint.
double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 != 0) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

// The standard deviation of normal values with this median absolute deviation is 1.4826 times it.
constexpr double kDeviationsOfMedian = 1.4826;

double spread(std::vector<double> values, double center) {
  for (double& each : values) each = std::abs(each - center);
  return kDeviationsOfMedian * median(std::move(values));
}

}  // namespace

void StepDurations::keep(std::vector<double>& kept, std::size_t& next, double seconds) {
  if (kept.size() < kKept) {
    kept.push_back(seconds);
  } else {
    kept[next] = seconds;
    next = (next + 1) % kKept;
  }
}

void StepDurations::add(bool ran, double seconds, double cost) {
  ++steps_;
  if (ran) {
    keep(on_, next_on_, seconds - cost);
  } else {
    keep(off_, next_off_, seconds - cost);
    newest_off_ = steps_;
  }
  if (!off_.empty() && steps_ > 2 * newest_off_ + kFreshFor) forget_what_is_old();
}

void StepDurations::forget_what_is_old() {
  on_.clear();
  off_.clear();
  next_on_ = next_off_ = 0;
}

double StepDurations::hidden_cost() const {
  if (!known()) return 0;
  const double off = median(off_);
  const double by_chance = spread(off_, off) / std::sqrt(static_cast<double>(on_.size()));
  return std::max(0.0, median(on_) - off - by_chance);
}

}  // namespace telens
