#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "analysis/baseline.h"
#include "analysis/rules/loss_level.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

constexpr double kSpreads = 5;
constexpr double kLeastRise = 0.25;  // relative to the previous loss
constexpr double kHigh = 1.7;        // times the loss before
constexpr std::size_t kWindow = 12;  // steps of the past
constexpr std::size_t kLeastPast = 5;

enum class Course : std::uint8_t { falls_again, stays_up, open };

// It stays up where over half of the rise is there in most of the next steps.
Course summarize_course(const std::vector<Point>& losses, std::size_t at) {
  constexpr std::size_t kNext = 5;
  constexpr std::size_t kLeastNext = 2;
  const std::size_t next = std::min(kNext, losses.size() - at - 1);
  if (next < kLeastNext) return Course::open;
  const double middle = (losses[at].value + losses[at - 1].value) / 2;
  const auto begin = losses.begin() + static_cast<std::ptrdiff_t>(at + 1);
  const auto above = std::count_if(begin, begin + static_cast<std::ptrdiff_t>(next),
                                   [&](const Point& point) { return point.value > middle; });
  return 2 * static_cast<std::size_t>(above) > next ? Course::stays_up : Course::falls_again;
}

std::string suggest_next_step(std::int64_t iteration, Course course) {
  if (course == Course::stays_up) {
    return fmt::format(
        "check other changes in iteration {}: the data source, the loss function, the learning "
        "rate (debug.watch_optimizer(optimizer) records it); compare with a run without the "
        "jump: telens diff RUN OTHER",
        iteration);
  }
  return fmt::format(
      "print the batch of iteration {} and the loss of each row; skip this batch and resume from "
      "the last checkpoint: if the spike remains, the data are not the cause",
      iteration);
}

Finding loss_spike_finding(int rank, const std::vector<Point>& losses, std::size_t at) {
  const auto& [iteration, value] = losses[at];
  const Point& before = losses[at - 1];
  const Course course = summarize_course(losses, at);
  const bool stays = course == Course::stays_up;
  const std::string_view end = course == Course::falls_again ? " and falls again" : "";
  return {.cause = "loss_spike",
          .place = {.rank = rank},
          .first = iteration,
          .last = iteration,
          .confidence = kProbable,
          .summary = fmt::format("the loss jumps from {:.4g} to {:.4g}{}; if no other finding "
                                 "comes first, no recorded number explains it: check the data {} "
                                 "this iteration{}, and tensors that were not recorded",
                                 before.value, value, stays ? " and stays up" : end,
                                 stays ? "from" : "of", stays ? " on" : ""),
          .evidence = {{"loss", {}, iteration, value, ""},
                       {"loss", {}, before.iteration, before.value, "before"}},
          .next_step = suggest_next_step(iteration, course)};
}

Finding make_rise_finding(const Facts& facts, int rank, const LossRise& rise) {
  return {.cause = "loss_spike",
          .place = {.rank = rank},
          .first = rise.first,
          .last = facts.last_iteration(),
          .confidence = kProbable,
          .summary = fmt::format(
              "the loss rises from {:.4g} to {:.4g} and stays up: in 8 steps it is above each of "
              "the 8 before; if no other finding comes first, no recorded number explains it",
              rise.before, rise.after),
          .evidence = {{"loss", {}, rise.first, rise.after, "median of 8 from here on"},
                       {"loss", {}, rise.first, rise.smallest_after, "smallest of these"},
                       {"loss", {}, rise.first - 1, rise.before, "median of 8 before"},
                       {"loss", {}, rise.first - 1, rise.largest_before, "largest of these"}},
          .next_step = suggest_next_step(rise.first, Course::stays_up)};
}

// The first steps after a resume, in which a loss in the checkpoint shows and the training loss
// returns to earlier values.
bool is_resumed(const Facts& facts, std::int64_t iteration) {
  constexpr std::int64_t kSteps = 2;
  return std::ranges::any_of(facts.resumes(), [&](const Resume& resume) {
    return iteration >= resume.first && iteration <= resume.first + kSteps;
  });
}

// A training at a high learning rate goes back to losses that it had before.
bool is_new_height(const std::vector<Point>& losses, std::size_t at) {
  const auto now = losses.begin() + static_cast<std::ptrdiff_t>(at);
  const auto largest = std::ranges::max_element(losses.begin(), now, {}, &Point::value);
  return now->value > largest->value || now->value > kHigh * std::prev(now)->value;
}

std::optional<Finding> jump_in(const Facts& facts, const Scalars& scalars) {
  std::vector<double> steps;
  for (std::size_t i = 1; i < scalars.points.size(); ++i) {
    const double value = scalars.points[i].value;
    const double before = scalars.points[i - 1].value;
    const double step = value - before;
    if (steps.size() >= kLeastPast && step > kLeastRise * std::abs(before) &&
        step > kSpreads * spread(steps) &&
        (is_new_height(scalars.points, i) || is_resumed(facts, scalars.points[i].iteration))) {
      return loss_spike_finding(scalars.rank, scalars.points, i);
    }
    steps.push_back(step);
    if (steps.size() > kWindow) steps.erase(steps.begin());
  }
  return std::nullopt;
}

std::vector<Finding> find_loss_spike(const Facts& facts) {
  for (const Scalars& scalars : facts.scalars()) {
    if (scalars.name != "loss") continue;
    if (auto jump = jump_in(facts, scalars)) return {std::move(*jump)};
    if (const auto rise = first_rise_that_stays(scalars.points)) {
      return {make_rise_finding(facts, scalars.rank, *rise)};
    }
  }
  return {};
}

}  // namespace

Rule loss_spike() {
  return {
      .cause = "loss_spike",
      .title = "loss spike or jump",
      .doc =
          "Within one iteration the loss rises by a quarter and by 5 spreads of its usual steps, "
          "above all earlier losses or to 1.7 times the previous loss. A return to an earlier loss "
          "is normal at a high learning rate and is reported only in the first steps of a resumed "
          "run. Also reported: a rise by a fifth, sudden or gradual, after which 8 losses are all "
          "above the 8 before. If this finding comes first, no recorded number explains the rise.",
      .stage = Stage::propagation,
      .recorded_by = "debug.step(loss=...)",
      .alternatives =
          "Different data; a learning rate near the limit; tensors that were not recorded.",
      .next_step =
          "if the loss falls again, check the batch of this iteration; if it stays up, check "
          "other changes in this iteration",
      .find = find_loss_spike};
}

}  // namespace telens::analysis
