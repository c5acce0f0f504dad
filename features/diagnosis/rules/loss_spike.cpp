#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "features/diagnosis/baseline.h"
#include "features/diagnosis/rules/rules.h"

namespace telens::diagnosis {
namespace {

constexpr double kSpreads = 5;
constexpr double kLeastRise = 0.25;  // as a part of the loss before
constexpr double kHigh = 1.7;        // times the loss before
constexpr std::size_t kWindow = 12;  // steps of the past
constexpr std::size_t kLeastPast = 5;

Finding finding_of(int rank, std::int64_t iteration, double value, double before) {
  return {.cause = "loss_spike",
          .place = {.rank = rank},
          .first = iteration,
          .last = iteration,
          .confidence = kProbable,
          .summary = fmt::format("the loss jumps from {:.4g} to {:.4g}; where no other finding "
                                 "comes first, no number of this run explains it: look at the data "
                                 "of this iteration",
                                 before, value),
          .evidence = {{"loss", {}, iteration, value, ""},
                       {"loss", {}, iteration - 1, before, "before"}}};
}

// A training at a high learning rate goes back to losses that it had before.
bool is_new_height(const std::vector<Point>& losses, std::size_t at) {
  const auto now = losses.begin() + static_cast<std::ptrdiff_t>(at);
  const auto largest = std::ranges::max_element(losses.begin(), now, {}, &Point::value);
  return now->value > largest->value || now->value > kHigh * std::prev(now)->value;
}

std::vector<Finding> find(const Facts& facts) {
  for (const Scalars& scalars : facts.scalars()) {
    if (scalars.name != "loss") continue;
    std::vector<double> steps;
    for (std::size_t i = 1; i < scalars.points.size(); ++i) {
      const double value = scalars.points[i].value;
      const double before = scalars.points[i - 1].value;
      const double step = value - before;
      if (steps.size() >= kLeastPast && step > kLeastRise * std::abs(before) &&
          step > kSpreads * spread(steps) && is_new_height(scalars.points, i)) {
        return {finding_of(scalars.rank, scalars.points[i].iteration, value, before)};
      }
      steps.push_back(step);
      if (steps.size() > kWindow) steps.erase(steps.begin());
    }
  }
  return {};
}

}  // namespace

Rule loss_spike() {
  return {
      .cause = "loss_spike",
      .title = "a spike of the loss",
      .doc =
          "The loss rises by a quarter and by 5 spreads of its steps within an iteration, above "
          "all losses before or to 1.7 times the last one: trainings at a high learning rate go "
          "back to losses that they had. As a finding of its own it has no numeric cause in "
          "what was recorded.",
      .stage = Stage::propagation,
      .recorded_by = "debug.step(loss=...)",
      .alternatives = "Other data; a learning rate near the limit; what was not recorded.",
      .next_step =
          "look at the batch of this iteration; train it again from the last "
          "checkpoint with configs/log_all_statistics.yaml",
      .find = find};
}

}  // namespace telens::diagnosis
