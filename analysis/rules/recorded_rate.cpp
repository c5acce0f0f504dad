#include "analysis/rules/recorded_rate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string_view>

namespace telens::analysis {
namespace {

constexpr double kMinRateFactor = 3;  // times the largest earlier rate
constexpr std::size_t kMinPastRates = 4;
constexpr std::int64_t kMaxDelay = 8;  // iterations until a rate that is too large affects the loss
// Relative to the largest of the last losses, which may be negative.
constexpr double kMinLossRise = 0.05;

// Returns true if a loss in the next kMaxDelay iterations is not finite or exceeds all losses of
// the last kMaxDelay iterations by kMinLossRise.
bool loss_rises_after(const Facts& facts, std::int64_t iteration) {
  for (const Scalars& scalars : facts.scalars()) {
    if (scalars.name != "loss") continue;
    double before = -INFINITY;
    double after = -INFINITY;
    for (const Point& point : scalars.points) {
      const std::int64_t away = point.iteration - iteration;
      if (away > kMaxDelay || away < -kMaxDelay) continue;
      if (away > 0 && !std::isfinite(point.value)) return true;
      double& largest = away > 0 ? after : before;
      largest = std::max(largest, point.value);
    }
    if (std::isfinite(before) && after - before > kMinLossRise * std::abs(before)) return true;
  }
  return false;
}

std::optional<RateJump> find_rate_jump(const Scalars& rates) {
  RateJump jump{.name = rates.name};
  std::size_t past = 0;
  for (const auto& [iteration, rate] : rates.points) {
    jump.iteration = iteration;
    jump.after = rate;
    if (past >= kMinPastRates && jump.largest > 0 && rate > kMinRateFactor * jump.largest)
      return jump;
    jump.previous = iteration;
    jump.before = rate;
    jump.largest = std::max(jump.largest, rate);
    ++past;
  }
  return std::nullopt;
}

}  // namespace

bool is_rate(std::string_view name) {
  const std::string_view last = name.substr(name.rfind('.') + 1);
  return last == "lr" || last == "learning_rate";
}

std::optional<RateJump> first_rate_jump(const Facts& facts) {
  std::optional<RateJump> first;
  for (const Scalars& scalars : facts.scalars()) {
    if (!is_rate(scalars.name)) continue;
    const auto jump = find_rate_jump(scalars);
    if (jump && (!first || jump->iteration < first->iteration)) first = jump;
  }
  if (first) first->loss_rises = loss_rises_after(facts, first->iteration);
  return first;
}

}  // namespace telens::analysis
