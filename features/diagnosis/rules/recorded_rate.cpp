#include "features/diagnosis/rules/recorded_rate.h"

#include <algorithm>
#include <cmath>

namespace telens::diagnosis {
namespace {

constexpr double kJump = 3;            // times the largest one before
constexpr std::size_t kLeastPast = 4;  // points
constexpr std::int64_t kSoon = 8;      // iterations in which a rate that is too large shows
constexpr double kRise = 1.05;         // times the largest of the last losses

// The loss goes above the last ones within kSoon iterations, or is no number any more.
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
    if (std::isfinite(before) && after > kRise * before) return true;
  }
  return false;
}

}  // namespace

std::optional<RateJump> first_rate_jump(const Facts& facts) {
  for (const Scalars& scalars : facts.scalars()) {
    if (scalars.name != "lr" && scalars.name != "learning_rate") continue;
    double largest = 0;
    std::size_t past = 0;
    for (const auto& [iteration, rate] : scalars.points) {
      if (past >= kLeastPast && largest > 0 && rate > kJump * largest) {
        return RateJump{iteration, largest, rate, loss_rises_after(facts, iteration)};
      }
      largest = std::max(largest, rate);
      ++past;
    }
  }
  return std::nullopt;
}

}  // namespace telens::diagnosis
