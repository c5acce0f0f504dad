#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "analysis/baseline.h"
#include "analysis/rules/rules.h"
#include "analysis/series.h"

namespace telens::analysis {
namespace {

constexpr double kMinSpreads = 5;      // times the spread of the past steps
constexpr double kMinLossJump = 0.25;  // relative to the previous loss
// Relative to the previous loss, for a single batch. Small batches vary by up to a half.
constexpr double kMinPassingJump = 0.5;
constexpr double kNewHeight = 1.7;   // times the previous loss
constexpr std::size_t kWindow = 12;  // past steps
constexpr std::size_t kMinPastSteps = 5;

enum class LossCourse : std::uint8_t { falls_again, stays_up, open };

// Returns stays_up if more than half of the rise remains in most of the next 5 steps; open if fewer
// than 2 were recorded.
LossCourse summarize_course(const std::vector<Point>& losses, std::size_t at) {
  constexpr std::size_t kNext = 5;
  constexpr std::size_t kMinNext = 2;
  const std::size_t next = std::min(kNext, losses.size() - at - 1);
  if (next < kMinNext) return LossCourse::open;
  const double middle = (losses[at].value + losses[at - 1].value) / 2;
  const auto begin = losses.begin() + static_cast<std::ptrdiff_t>(at + 1);
  const auto above = std::count_if(begin, begin + static_cast<std::ptrdiff_t>(next),
                                   [&](const Point& point) { return point.value > middle; });
  return 2 * static_cast<std::size_t>(above) > next ? LossCourse::stays_up
                                                    : LossCourse::falls_again;
}

std::string suggest_next_step(std::int64_t iteration, LossCourse course) {
  if (course == LossCourse::stays_up) {
    return fmt::format(
        "check other changes in iteration {}: the data source, the loss function, the learning "
        "rate (debug.watch_optimizer(optimizer) records it); compare with a run without the jump: "
        "telens diff RUN OTHER",
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
  const LossCourse course = summarize_course(losses, at);
  const bool stays = course == LossCourse::stays_up;
  const std::string_view end = course == LossCourse::falls_again ? " and falls again" : "";
  return {
      .cause = "loss_spike",
      .place = {.rank = rank},
      .first = iteration,
      .last = iteration,
      .confidence = kProbable,
      .summary = fmt::format(
          "the loss jumps from {:.4g} to {:.4g}{}; if this is the first finding, no recorded value "
          "explains it: check the data {} this iteration{} and tensors that were not recorded",
          before.value, value, stays ? " and stays up" : end, stays ? "from" : "of",
          stays ? " on" : ""),
      .evidence = {{"loss", {}, iteration, value, ""},
                   {"loss", {}, before.iteration, before.value, "before"}},
      .next_step = suggest_next_step(iteration, course)};
}

struct LossRise {
  std::int64_t first = 0;  // iteration
  double before = 0;       // median of 8 losses
  double after = 0;        // median of the next 8
  double largest_before = 0;
  double smallest_after = 0;
};

constexpr std::size_t kLevelSteps = 8;
constexpr double kMinLevelRise = 0.2;  // relative to the median before

std::vector<double> get_values(std::span<const Point> points) {
  std::vector<double> values;
  for (const Point& point : points) values.push_back(point.value);
  return values;
}

// Returns the first rise after which 8 losses in a row are all larger than each of the 8 before, by
// a fifth in the median. In a training at a high learning rate, the loss rises for only a few
// steps.
std::optional<LossRise> find_lasting_rise(const std::vector<Point>& all) {
  std::vector<Point> losses;
  std::ranges::copy_if(all, std::back_inserter(losses),
                       [](const Point& point) { return std::isfinite(point.value); });
  for (std::size_t i = kLevelSteps; i + kLevelSteps <= losses.size(); ++i) {
    if (losses[i].value <= losses[i - 1].value) continue;
    const std::span<const Point> before = std::span(losses).subspan(i - kLevelSteps, kLevelSteps);
    const std::span<const Point> after = std::span(losses).subspan(i, kLevelSteps);
    const double largest = std::ranges::max(before, {}, &Point::value).value;
    const double smallest = std::ranges::min(after, {}, &Point::value).value;
    if (smallest <= largest) continue;
    const double usual = median(get_values(before));
    const double now = median(get_values(after));
    if (now - usual < kMinLevelRise * std::abs(usual)) continue;
    return LossRise{losses[i].iteration, usual, now, largest, smallest};
  }
  return std::nullopt;
}

Finding make_rise_finding(const Facts& facts, int rank, const LossRise& rise) {
  return {
      .cause = "loss_spike",
      .place = {.rank = rank},
      .first = rise.first,
      .last = facts.last_iteration(),
      .confidence = kProbable,
      .summary = fmt::format(
          "the loss rises from {:.4g} to {:.4g} and stays up: 8 consecutive losses exceed all of "
          "the previous 8; if this is the first finding, no recorded value explains it",
          rise.before, rise.after),
      .evidence = {{"loss", {}, rise.first, rise.after, "median of the next 8"},
                   {"loss", {}, rise.first, rise.smallest_after, "smallest of the next 8"},
                   {"loss", {}, rise.first - 1, rise.before, "median of the previous 8"},
                   {"loss", {}, rise.first - 1, rise.largest_before, "largest of the previous 8"}},
      .next_step = suggest_next_step(rise.first, LossCourse::stays_up)};
}

// Returns true in the first steps after a resume. If the checkpoint lost state, the loss returns to
// earlier values in these steps.
bool is_resumed(const Facts& facts, std::int64_t iteration) {
  constexpr std::int64_t kResumeSteps = 2;
  return std::ranges::any_of(facts.resumes(), [&](const Resume& resume) {
    return iteration >= resume.first && iteration <= resume.first + kResumeSteps;
  });
}

// Returns true if the loss exceeds all earlier losses or kNewHeight times the previous loss. In a
// training at a high learning rate, the loss often returns to earlier values.
bool is_new_height(const std::vector<Point>& losses, std::size_t at) {
  const auto now = losses.begin() + static_cast<std::ptrdiff_t>(at);
  const auto largest = std::ranges::max_element(losses.begin(), now, {}, &Point::value);
  return now->value > largest->value || now->value > kNewHeight * std::prev(now)->value;
}

std::optional<Finding> find_jump_in(const Facts& facts, int rank,
                                    const std::vector<Point>& losses) {
  std::vector<double> steps;
  for (std::size_t i = 1; i < losses.size(); ++i) {
    const double before = losses[i - 1].value;
    const double step = losses[i].value - before;
    const bool resumed = is_resumed(facts, losses[i].iteration);
    const bool passes = !resumed && summarize_course(losses, i) == LossCourse::falls_again;
    const double least = (passes ? kMinPassingJump : kMinLossJump) * std::abs(before);
    if (steps.size() >= kMinPastSteps && step > least && step > kMinSpreads * spread(steps) &&
        (resumed || is_new_height(losses, i))) {
      return loss_spike_finding(rank, losses, i);
    }
    steps.push_back(step);
    if (steps.size() > kWindow) steps.erase(steps.begin());
  }
  return std::nullopt;
}

std::vector<Finding> find_loss_spike(const Facts& facts) {
  for (const Scalars& scalars : facts.scalars()) {
    if (scalars.name != "loss") continue;
    // A batch in which no label counts has a loss of exactly 0.
    std::vector<Point> losses = scalars.points;
    std::erase_if(losses, [](const Point& point) { return point.value == 0; });
    if (auto jump = find_jump_in(facts, scalars.rank, losses)) return {std::move(*jump)};
    if (const auto rise = find_lasting_rise(losses)) {
      return {make_rise_finding(facts, scalars.rank, *rise)};
    }
  }
  return {};
}

}  // namespace

Rule loss_spike() {
  return {.cause = "loss_spike",
          .title = "loss spike or jump",
          .doc =
              "Within one iteration the loss rises by a quarter, or by a half if it falls again, "
              "and by 5 times the spread of its usual steps, above all earlier losses or to 1.7 "
              "times the previous loss. A return to an earlier loss is normal at a high learning "
              "rate and is reported only in the first steps of a resumed run. Also reported: a "
              "rise by a fifth, sudden or gradual, after which 8 consecutive losses exceed all of "
              "the previous 8. Losses of exactly 0, as from a batch without labels, are ignored. "
              "If this is the first finding, no recorded value explains the rise.",
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
