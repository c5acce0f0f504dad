#include "features/trigger/condition.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace telens {
namespace {

using Relation = Condition::Relation;

bool is_comparison(Relation relation) { return relation < Relation::jumps; }

bool holds(Relation relation, double value, double bound) {
  switch (relation) {
    case Relation::above:
      return value > bound;
    case Relation::at_least:
      return value >= bound;
    case Relation::below:
      return value < bound;
    default:
      return value <= bound;
  }
}

std::size_t values_needed(const Condition& condition) {
  if (is_comparison(condition.relation)) return 0;
  return condition.relation == Relation::spikes ? condition.window : 1;
}

}  // namespace

std::optional<std::string> ConditionHistory::add(double value) {
  const std::optional<std::string> judged = judge(value);
  const std::size_t needed = values_needed(condition_);
  if (std::isfinite(value) && needed > 0) {
    before_.push_back(value);
    if (before_.size() > needed) before_.pop_front();
  }
  return judged;
}

std::optional<std::string> ConditionHistory::judge(double value) const {
  if (std::isnan(value)) return "NaN";
  if (condition_.relation == Relation::spikes) return judge_spike(value);
  if (!is_comparison(condition_.relation)) return judge_step(value);
  if (!holds(condition_.relation, value, condition_.bound)) return std::nullopt;
  return fmt::format("{:.6g}", value);
}

std::optional<std::string> ConditionHistory::judge_step(double value) const {
  if (before_.empty() || before_.back() <= 0 || value < 0) return std::nullopt;
  const double last = before_.back();
  const bool rises = condition_.relation == Relation::jumps;
  if (rises ? value <= condition_.bound * last : value * condition_.bound >= last) {
    return std::nullopt;
  }
  return fmt::format("{:.6g} after {:.6g}", value, last);
}

std::optional<std::string> ConditionHistory::judge_spike(double value) const {
  if (before_.size() < std::min(condition_.window, kFewestBeforeSpike)) return std::nullopt;
  const double usual = average();
  if (usual <= 0 || value <= condition_.bound * usual) return std::nullopt;
  return fmt::format("{:.6g}, {:.3g} times the {} of {} values, {:.6g}", value, value / usual,
                     condition_.average == Condition::Average::median ? "median" : "mean",
                     before_.size(), usual);
}

double ConditionHistory::average() const {
  std::vector<double> values(before_.begin(), before_.end());
  if (condition_.average == Condition::Average::mean) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  }
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace telens
