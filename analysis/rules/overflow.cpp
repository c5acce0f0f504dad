#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "analysis/baseline.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

constexpr double kMinMissingHeadroom =
    0.4;  // bits; a smaller excess clips few elements, by a quarter
// Consecutive reads; delayed scaling clips in single iterations.
constexpr std::size_t kMinClippedReads = 6;
// Consecutive reads, if each scale fits the tensor of the previous read.
constexpr std::size_t kMinGrowingReads = 12;
constexpr double kMinClippedPercent = 0.05;  // of the elements
constexpr double kMinWorstPercent = 2;       // of the elements, in the worst iteration

// Returns true if the scale changed by the headroom that was missing in the previous iteration: it
// follows the tensor, which has grown again.
bool follows_tensor(const Series* jump, const Series& headroom, std::int64_t iteration) {
  constexpr double kMaxDifference = 0.1;  // bits
  const auto moved = jump != nullptr ? jump->at(iteration) : std::nullopt;
  const auto lacked = headroom.at(iteration - 1);
  return moved && lacked && std::abs(*moved - *lacked) < kMaxDifference;
}

// Detects a tensor that stays larger than its scale allows and is clipped.
std::optional<Finding> find_clipping(const Facts& facts, const Series& percent) {
  const Series* headroom = facts.beside(percent, "scale_headroom");
  if (headroom == nullptr) return std::nullopt;
  const Series* jump = facts.beside(percent, "scale_jump");
  std::size_t consecutive = 0;
  std::size_t following = 0;  // consecutive reads in which the scale follows the tensor
  std::optional<Finding> found;
  Point first;
  Point worst;
  for (const Point& point : percent.points) {
    const double room = headroom->at(point.iteration).value_or(0);
    const bool clips = point.value > kMinClippedPercent && room < -kMinMissingHeadroom;
    consecutive = clips ? consecutive + 1 : 0;
    if (consecutive <= 1) following = 0;
    if (clips && follows_tensor(jump, *headroom, point.iteration)) ++following;
    if (consecutive == 1 && !found) {
      first = point;
      worst = point;
    }
    if (clips && point.value > worst.value) worst = point;
    // If a tensor grows several times in a row by chance, every scale except the first follows.
    const bool is_growing = following + 1 >= consecutive;
    if (consecutive < (is_growing ? kMinGrowingReads : kMinClippedReads)) continue;
    if (!found) {
      found = Finding{.cause = "overflow", .place = percent.place, .first = first.iteration};
    }
    found->last = point.iteration;
  }
  if (!found || worst.value < kMinWorstPercent) return std::nullopt;
  found->confidence = kProbable;
  found->summary = fmt::format(
      "the cast clips up to {:.2g} % of the elements in each iteration: the tensor is too large "
      "for its scale, and the scale does not follow",
      worst.value);
  found->evidence = {{"stale_saturated%", percent.place, worst.iteration, worst.value, "largest"},
                     {"scale_headroom", percent.place, worst.iteration,
                      headroom->at(worst.iteration).value_or(0), ""}};
  return found;
}

std::vector<Finding> find_overflow(const Facts& facts) {
  std::vector<Finding> found;
  for (const Series* percent : facts.with("stale_saturated%")) {
    if (auto finding = find_clipping(facts, *percent)) found.push_back(std::move(*finding));
  }
  return found;
}

}  // namespace

Rule overflow() {
  return {.cause = "overflow",
          .title = "persistent clipping in a cast",
          .doc =
              "Elements are clipped in 6 consecutive iterations, or in 12 if each scale fits the "
              "tensor of the iteration before. In each, the largest element loses at least 24 % of "
              "its size. Delayed scaling clips a few elements in single iterations, and block "
              "formats clip because they round their scales; neither is reported.",
          .stage = Stage::cast,
          .required = {"stale_saturated%", "scale_headroom"},
          .optional = {"scale_jump"},
          .recorded_by = "ScaleHealth",
          .alternatives =
              "A tensor that grows steadily, for example because the learning rate is too high.",
          .next_step =
              "use PerTensorScaling for this tensor (configs/"
              "current_scaling_for_gradients.yaml), DelayedScaling(margin=1), or a shorter "
              "amax_history_len",
          .find = find_overflow};
}

}  // namespace telens::analysis
