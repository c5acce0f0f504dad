#include "analysis/rules/recorded_rate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string_view>

namespace telens::analysis {
namespace {

constexpr double kJump = 3;            // times the largest one before
constexpr std::size_t kLeastPast = 4;  // points
constexpr std::int64_t kSoon = 8;      // iterations in which a rate that is too large shows
constexpr double kRise = 0.05;         // a share of the last losses, which may be negative

// The loss exceeds the last losses within kSoon iterations, or becomes NaN.
bool loss_rises_after(const Facts& facts, std::int64_t iteration) {
  for (const Scalars& scalars : facts.scalars()) {
    if (scalars.name != "loss") continue;
    double before = -INFINITY;
    double after = -INFINITY;
    for (const Point& point : scalars.points) {
      const std::int64_t away = point.iteration - iteration;
      if (away > kSoon || away < -kSoon) continue;
      if (away > 0 && !std::isfinite(point.value)) return true;
      double& largest = away > 0 ? after : before;
      largest = std::max(largest, point.value);
    }
    if (std::isfinite(before) && after - before > kRise * std::abs(before)) return true;
  }
  return false;
}

std::optional<RateJump> first_jump(const Scalars& rates) {
  RateJump jump{.name = rates.name};
  std::size_t past = 0;
  for (const auto& [iteration, rate] : rates.points) {
    jump.iteration = iteration;
    jump.after = rate;
    if (past >= kLeastPast && jump.largest > 0 && rate > kJump * jump.largest) return jump;
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
    const auto jump = first_jump(scalars);
    if (jump && (!first || jump->iteration < first->iteration)) first = jump;
  }
  if (first) first->loss_rises = loss_rises_after(facts, first->iteration);
  return first;
}

}  // namespace telens::analysis
