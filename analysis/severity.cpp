#include "analysis/severity.h"

#include <algorithm>
#include <cmath>

namespace telens::analysis {
namespace {

using config::Worse;

// Larger sizes are clamped to this one: a sum of 1e18 such sizes is finite.
constexpr double kMost = 1e290;

}  // namespace

double lost_share(double underflows_percent, double overflows_percent) {
  const auto share = [](double percent) { return std::clamp(percent / 100, 0.0, 1.0); };
  return share(underflows_percent) + kClippedCounts * share(overflows_percent);
}

std::vector<StatisticId> catalogue_rows(const record::RunReader& run) {
  std::vector<StatisticId> rows;
  for (const std::string& name : run.names(record::Dictionary::statistic)) {
    rows.push_back(find_statistic(name));
  }
  return rows;
}

double badness(StatisticId statistic, double value) {
  if (!std::isfinite(value)) return 0;
  switch (statistic == nullptr ? Worse::high : statistic->worse) {
    case Worse::below_zero:
      return std::max(0.0, -value);
    case Worse::away_from_zero:
      return std::abs(value);
    case Worse::below_one:
      return 1 - value;
    case Worse::high:
    case Worse::any:
      return value;
  }
  return value;
}

bool is_bad(StatisticId statistic, double value) {
  const bool counts_bad = statistic != nullptr && statistic->worse == Worse::any;
  return !std::isfinite(value) || (value > 0 && counts_bad);
}

void Severity::Sizes::add(double size) {
  size = std::clamp(size, -kMost, kMost);
  largest = count == 0 ? size : std::max(largest, size);
  ++count;
  sum += size;
  if (size > 0) ++positive;
}

bool worse(const SortKey& a, const SortKey& b) {
  if (a.first_bad.has_value() != b.first_bad.has_value()) return a.first_bad.has_value();
  if (a.first_bad && *a.first_bad != *b.first_bad) return *a.first_bad < *b.first_bad;
  if (a.first_bad && a.order_in_step != b.order_in_step) return a.order_in_step < b.order_in_step;
  if (a.only_warm_up != b.only_warm_up) return b.only_warm_up;
  if (a.severity != b.severity) return a.severity > b.severity;
  return a.tie_breaker > b.tie_breaker;
}

}  // namespace telens::analysis
