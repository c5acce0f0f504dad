#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "features/diagnosis/baseline.h"
#include "features/diagnosis/rules/rules.h"

namespace telens::diagnosis {
namespace {

constexpr std::size_t kPast = 12;     // bends before
constexpr std::size_t kLevel = 8;     // losses whose height is the usual one: the first of the past
constexpr std::size_t kStill = 8;     // losses of one batch
constexpr double kLeastBend = 0.005;  // part of the loss: less is hardly noise of batches
constexpr double kTimesUsual = 5;
constexpr double kTimesLast = 3;

// How far a loss lies off the middle of its neighbors: what batches differ by. A trend is none of
// it, as that of a batch that is learned by heart.
double bend(std::span<const Point> losses, std::size_t at) {
  return std::abs(losses[at - 1].value - 2 * losses[at].value + losses[at + 1].value);
}

// Bends at `first` and the ones behind it.
std::vector<double> bends(std::span<const Point> losses, std::size_t first, std::size_t count) {
  std::vector<double> found;
  for (std::size_t i = first; i < first + count; ++i) found.push_back(bend(losses, i));
  return found;
}

// Each step on a batch that comes again lowers its loss.
bool falls(std::span<const Point> losses) {
  return std::ranges::is_sorted(losses, std::greater(), &Point::value);
}

// The first of kStill losses that are of one batch.
bool is_still_from(std::span<const Point> losses, std::size_t first) {
  const double largest = std::ranges::max(bends(losses, first + 1, kStill - 2));
  // The bends at the last loss of the past, and at the first one here, are of both.
  const std::vector<double> past = bends(losses, first - 1 - kPast, kPast);
  const std::vector<double> newest(past.end() - 4, past.end());
  if (!falls(losses.subspan(first, kStill))) return false;
  if (median(past) < kLeastBend * std::abs(losses[first].value)) return false;
  if (median(past) <= kTimesUsual * largest || median(newest) <= kTimesLast * largest) return false;
  // A loss that jumps to another level has another cause.
  const auto before = losses.subspan(first - kPast, kLevel);
  const auto [low, high] = std::ranges::minmax(before, {}, &Point::value);
  const double width = high.value - low.value;
  return losses[first].value >= low.value - width && losses[first].value <= high.value;
}

std::optional<Finding> find_in(const Scalars& scalars) {
  std::vector<Point> losses;
  std::ranges::copy_if(scalars.points, std::back_inserter(losses),
                       [](const Point& point) { return std::isfinite(point.value); });
  for (std::size_t i = kPast + 2; i + kStill <= losses.size(); ++i) {
    if (!is_still_from(losses, i)) continue;
    const double usual = median(bends(losses, i - 1 - kPast, kPast));
    std::size_t last = i + kStill - 1;
    while (last + 1 < losses.size() && kTimesUsual * bend(losses, last) < usual) ++last;
    return Finding{
        .cause = "repeated_batch",
        .place = {.rank = scalars.rank},
        .first = losses[i].iteration,
        .last = losses[last].iteration,
        .confidence = kProbable,
        .summary = fmt::format(
            "the loss hardly varies any more: from iteration to iteration it was {:.2g} off its "
            "course, and is {:.2g}; it looks like one batch again and again",
            usual, median(bends(losses, i + 1, last - i - 1))),
        .evidence = {{"loss", {}, losses[i].iteration, losses[i].value, ""},
                     {"loss", {}, losses[i + 1].iteration, losses[i + 1].value, "the next"},
                     {"loss", {}, losses[i - 1].iteration, losses[i - 1].value, "before"}},
        .next_step =
            fmt::format("compare the batches of iterations {} and {}; look for an iterator "
                        "that is made anew in each step (next(iter(loader))), or that is "
                        "at its end",
                        losses[i].iteration, losses[i + 1].iteration)};
  }
  return std::nullopt;
}

std::vector<Finding> find(const Facts& facts) {
  for (const Scalars& scalars : facts.scalars()) {
    if (scalars.name != "loss") continue;
    if (auto found = find_in(scalars)) return {std::move(*found)};
  }
  return {};
}

}  // namespace

Rule repeated_batch() {
  return {.cause = "repeated_batch",
          .title = "the same batch again and again",
          .doc =
              "The loss went to and fro as batches differ, and from one iteration on follows a "
              "smooth curve, downward, for 8 steps and more: no loss is off the middle of its "
              "neighbors by a "
              "fifth of what was usual, at a height that it had just before. A training whose loss "
              "is smooth from the start, and one "
              "whose loss calms down slowly, is no finding.",
          .stage = Stage::propagation,
          .recorded_by = "debug.step(loss=...)",
          .alternatives =
              "A much larger batch from here on; data that is all alike, as padding; a loss that "
              "the program averages over iterations.",
          .next_step = "compare the batches of two iterations",
          .find = find};
}

}  // namespace telens::diagnosis
