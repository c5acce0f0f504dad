#include "analysis/rules/recorded_update.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/baseline.h"
#include "analysis/sizes.h"

namespace telens::analysis {
namespace {

constexpr ShiftOptions kLarger{.least_bits = 1, .least_past = 8, .sustained = 2};
constexpr std::string_view kUpdate = "update_to_weight";

const Scalars* rate_beside(const Facts& facts, const Scalars& updates) {
  const std::string optimizer = updates.name.substr(0, updates.name.size() - kUpdate.size());
  const auto found = std::ranges::find_if(facts.scalars(), [&](const Scalars& each) {
    return each.rank == updates.rank && each.name == optimizer + "lr";
  });
  return found == facts.scalars().end() ? nullptr : &*found;
}

const Point* at(const Scalars& scalars, std::int64_t iteration) {
  const auto found = std::ranges::lower_bound(scalars.points, iteration, {}, &Point::iteration);
  return found != scalars.points.end() && found->iteration == iteration ? &*found : nullptr;
}

// Steps that a loss scaler skips are 0, and none.
std::vector<Point> steps_for_rate(const Scalars& updates, const Scalars& rates) {
  std::vector<Point> steps;
  for (const auto& [iteration, update] : updates.points) {
    const Point* rate = at(rates, iteration);
    if (rate != nullptr && rate->value > 0 && update > 0 && std::isfinite(update)) {
      steps.push_back({iteration, update / rate->value});
    }
  }
  return steps;
}

// A weight that did not change in the steps before, and does now.
bool is_any_trained_anew(const Facts& facts, std::int64_t iteration) {
  constexpr std::ptrdiff_t kStill = 3;  // points
  for (const Series& sizes : root_mean_squares(facts, TensorName::weight)) {
    const auto now = std::ranges::upper_bound(sizes.points, iteration, {}, &Point::iteration);
    if (now == sizes.points.end() || now - sizes.points.begin() < kStill) continue;
    const double before = (now - 1)->value;
    const bool was_still =
        std::all_of(now - kStill, now, [&](const Point& point) { return point.value == before; });
    if (was_still && now->value != before) return true;
  }
  return false;
}

std::optional<UpdateJump> first_jump(const Facts& facts, const Scalars& updates) {
  const Scalars* rates = rate_beside(facts, updates);
  if (rates == nullptr) return std::nullopt;
  const std::vector<Point> steps = steps_for_rate(updates, *rates);
  const auto shift = first_shift(steps, kLarger);
  if (!shift || shift->bits < 0 || is_any_trained_anew(facts, shift->first)) return std::nullopt;
  const auto first = std::ranges::lower_bound(steps, shift->first, {}, &Point::iteration);
  const std::int64_t previous = (first - 1)->iteration;
  return UpdateJump{.update = updates.name,
                    .rate = rates->name,
                    .iteration = shift->first,
                    .previous = previous,
                    .before = at(updates, previous)->value,
                    .after = at(updates, shift->first)->value,
                    .rate_before = at(*rates, previous)->value,
                    .rate_after = at(*rates, shift->first)->value};
}

}  // namespace

std::optional<UpdateJump> first_update_jump(const Facts& facts) {
  std::optional<UpdateJump> first;
  for (const Scalars& scalars : facts.scalars()) {
    if (!scalars.name.ends_with(kUpdate)) continue;
    const auto jump = first_jump(facts, scalars);
    if (jump && (!first || jump->iteration < first->iteration)) first = jump;
  }
  return first;
}

}  // namespace telens::analysis
