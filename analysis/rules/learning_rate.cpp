#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "analysis/rules/rules.h"
#include "analysis/rules/scalar_reads.h"

namespace telens::analysis {
namespace {

// If the schedule continues after a resume, one step changes the rate by less than this factor,
// except during warm-up, in which a resume is rare.
constexpr double kMaxStepFactor = 2;
// Steps of a constant rate, and steps of a changing rate before.
constexpr std::size_t kMinConstantSteps = 5;
constexpr std::size_t kMinZeroSteps = 5;    // up to the end of the run
constexpr double kMinZeroShare = 0.1;       // of all steps
constexpr double kMaxFinalRate = 0.01;      // of the peak; a schedule ends below it
constexpr double kMinRisenRate = 0.2;       // of the peak, after the rise
constexpr std::size_t kMinRisingSteps = 4;  // consecutive steps

using Points = std::vector<Point>;

Finding learning_rate_finding(const Scalars& rates, std::int64_t first, std::int64_t last,
                              std::string summary, std::vector<Evidence> evidence,
                              std::string next) {
  return {.cause = "learning_rate",
          .place = {.rank = rates.rank},
          .first = first,
          .last = last,
          .confidence = kProbable,
          .summary = std::move(summary),
          .evidence = std::move(evidence),
          .next_step = std::move(next)};
}

Evidence rate_at(const Scalars& rates, const Point& point, std::string what) {
  return {rates.name, {}, point.iteration, point.value, std::move(what)};
}

// Detects a rate that changes by a factor of kMaxStepFactor or more at the resume.
std::optional<Finding> find_jump_at_resume(const Facts& facts, const Scalars& rates,
                                           const Resume& resume, std::size_t first) {
  const Point& before = rates.points[first - 1];
  const Point& after = rates.points[first];
  if (!(before.value > 0) || !(after.value > 0)) return std::nullopt;
  const double factor = after.value / before.value;
  if (factor < kMaxStepFactor && factor > 1 / kMaxStepFactor) return std::nullopt;
  return learning_rate_finding(
      rates, after.iteration, facts.last_iteration(),
      fmt::format(
          "the learning rate is {:.3g} before the resume at iteration {} and {:.3g} after it",
          before.value, resume.first, after.value),
      {rate_at(rates, after, ""), rate_at(rates, before, "before")},
      "save and load the scheduler's state, create it after the optimizer's state is loaded, and "
      "compare scheduler.get_last_lr() before and after");
}

bool is_changing(const Points& points, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin + 1; i < end; ++i) {
    if (points[i].value == points[i - 1].value) return false;
  }
  return true;
}

bool is_constant_rate(const Points& points, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin + 1; i < end; ++i) {
    if (points[i].value != points[begin].value) return false;
  }
  return true;
}

// Detects a rate that changed in each step before the resume and in none after it.
std::optional<Finding> find_constant_after_resume(const Facts& facts, const Scalars& rates,
                                                  const Resume& resume, std::size_t first) {
  const Points& points = rates.points;
  if (first < kMinConstantSteps || points.size() - first <= kMinConstantSteps) return std::nullopt;
  if (!is_changing(points, first - kMinConstantSteps, first)) return std::nullopt;
  if (!is_constant_rate(points, first, points.size())) return std::nullopt;
  return learning_rate_finding(
      rates, points[first].iteration, facts.last_iteration(),
      fmt::format("the learning rate changed in each step before the resume at iteration {}, and "
                  "has been constant at {:.3g} since",
                  resume.first, points[first].value),
      {rate_at(rates, points.back(), ""), rate_at(rates, points[first - 1], "before")},
      "the scheduler updates another optimizer: create it for the optimizer that is stepped, and "
      "do not load an optimizer with the scheduler's state");
}

std::optional<Finding> find_at_resumes(const Facts& facts, const Scalars& rates) {
  for (const Resume& resume : facts.resumes()) {
    if (resume.last_before == INT64_MIN) continue;
    const auto at = std::ranges::lower_bound(rates.points, resume.first, {}, &Point::iteration);
    const auto first = static_cast<std::size_t>(at - rates.points.begin());
    if (first == 0 || first == rates.points.size()) continue;
    if (auto jump = find_jump_at_resume(facts, rates, resume, first)) return jump;
    if (auto constant = find_constant_after_resume(facts, rates, resume, first)) return constant;
  }
  return std::nullopt;
}

// Detects a rate that is zero in the last part of the run.
std::optional<Finding> find_zero_at_end(const Facts& facts, const Scalars& rates) {
  const Points& points = rates.points;
  std::size_t first = points.size();
  while (first > 0 && points[first - 1].value == 0) --first;
  const std::size_t zeros = points.size() - first;
  const auto min_zeros = static_cast<double>(points.size()) * kMinZeroShare;
  if (first == 0 || zeros < kMinZeroSteps || static_cast<double>(zeros) < min_zeros)
    return std::nullopt;
  return learning_rate_finding(
      rates, points[first].iteration, facts.last_iteration(),
      fmt::format(
          "the learning rate is zero in the last {} of {} steps, so these steps train nothing",
          zeros, points.size()),
      {rate_at(rates, points[first], ""), rate_at(rates, points[first - 1], "before")},
      "step the scheduler once per optimizer step, not per micro-batch or process, and pass it the "
      "number of optimizer steps");
}

// Detects a rate that falls to almost zero and then rises again step by step, as from a cosine
// schedule that continues beyond its end. An intended restart is a single jump to the peak.
std::optional<Finding> find_rise_after_end(const Facts& facts, const Scalars& rates) {
  const Points& points = rates.points;
  double peak = 0;
  for (std::size_t i = 1; i < points.size(); ++i) {
    peak = std::max(peak, points[i - 1].value);
    const Point& lowest = points[i];
    if (lowest.value > kMaxFinalRate * peak || points[i - 1].value <= lowest.value) continue;
    std::size_t end = i;
    while (end + 1 < points.size() && points[end + 1].value > points[end].value) ++end;
    if (end - i < kMinRisingSteps || points[end].value < kMinRisenRate * peak) continue;
    return learning_rate_finding(
        rates, lowest.iteration, facts.last_iteration(),
        fmt::format("the learning rate falls from {:.3g} to {:.3g} and then rises again step by "
                    "step to {:.3g}: the schedule continues beyond its end",
                    peak, lowest.value, points[end].value),
        {rate_at(rates, lowest, ""), rate_at(rates, points[end], "later")},
        "step the scheduler once per optimizer step, or multiply its number of steps by the number "
        "of processes and micro-batches that step it");
  }
  return std::nullopt;
}

std::vector<Finding> find_learning_rate(const Facts& facts) {
  for (const std::string_view name : {"lr", "learning_rate"}) {
    for (const Scalars* rates : scalars_named(facts, name)) {
      std::optional<Finding> found = find_at_resumes(facts, *rates);
      if (!found) found = find_rise_after_end(facts, *rates);
      if (!found) found = find_zero_at_end(facts, *rates);
      if (found) return {std::move(*found)};
    }
  }
  return {};
}

}  // namespace

Rule learning_rate() {
  return {
      .cause = "learning_rate",
      .title = "learning rate that leaves its schedule",
      .doc =
          "At a resume the learning rate changes by a factor of 2 or more, or stops changing after "
          "it changed in each step. Also reported: a rate of zero in at least the last tenth of "
          "the steps, and a rate that falls below 1 % of its peak and then rises again step by "
          "step. A restart of a schedule is one jump and is not reported. Sudden increases without "
          "a resume belong to weight_jump. Visible from the first step after a resume on.",
      .stage = Stage::setup,
      .scalars = {"lr", "learning_rate"},
      .needs_optimizer = true,
      .recorded_by = "telens.watch, debug.watch_optimizer(optimizer) or debug.step(loss, lr=...)",
      .alternatives = "A new training stage with a different rate on purpose; a cyclic schedule.",
      .next_step = "telens info RUN; plot the scalar lr",
      .find = find_learning_rate};
}

}  // namespace telens::analysis
