#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/rules/rules.h"
#include "analysis/rules/scale_reads.h"

namespace telens::analysis {
namespace {

constexpr double kAmaxRounding = 0.05;    // bits; BF16 amaxes have 8 significant bits
constexpr double kMaxScaleError = 1.5;    // bits between a correct scale and its amax
constexpr std::int64_t kMinScaleAge = 3;  // iterations
constexpr std::size_t kMinMissedUpdates = 2;
// Iterations between changes of a frequently changing scale.
constexpr std::int64_t kMaxUsualPause = 2;

// Returns true if the history at iteration `to` may contain a non-finite amax from after the last
// change of the scale (`moved`). Its maximum is then unknown, and the scale keeps its value until
// that amax has left the history.
bool has_unknown_maximum(const Series& amax, std::int64_t moved, std::int64_t to) {
  const std::int64_t from = std::max(moved, to - kLongestHistory);
  const auto at = [&](std::int64_t iteration) {
    return std::ranges::lower_bound(amax.points, iteration, {}, &Point::iteration);
  };
  const auto is_finite = [](double value) { return std::isfinite(value); };
  return !std::ranges::all_of(at(from), at(to), is_finite, &Point::value);
}

// Returns the reads in which the scale did not change although the tensor outgrew it in the
// previous iteration. Both the largest and the newest amax of the history then require a different
// scale. A scale that changed in the previous iteration followed a micro-batch and does not count.
std::vector<std::size_t> list_missed_updates(const std::vector<ScaleRead>& reads,
                                             const Series& amax) {
  std::vector<std::size_t> missed;
  std::int64_t moved = INT64_MIN;  // iteration
  for (std::size_t i = 1; i < reads.size(); ++i) {
    const bool consecutive = reads[i].iteration == reads[i - 1].iteration + 1;
    if (reads[i].jump.value_or(1) != 0) moved = reads[i].iteration;
    if (!consecutive || reads[i].jump.value_or(1) != 0) continue;
    if (reads[i - 1].jump.value_or(1) != 0) continue;
    if (reads[i - 1].staleness() <= kAmaxRounding) continue;
    if (!has_unknown_maximum(amax, moved, reads[i].iteration)) missed.push_back(i);
  }
  return missed;
}

// Returns the last read up to `missed` in which the scale changed.
std::size_t find_last_change(const std::vector<ScaleRead>& reads, std::size_t missed) {
  std::size_t moved = missed;
  while (moved > 0 && reads[moved].jump.value_or(1) == 0) --moved;
  return moved;
}

// Returns true if the scale ever kept its value after a smaller amax, because the history kept its
// maximum.
bool keeps_maximum(const std::vector<ScaleRead>& reads, std::size_t end) {
  for (std::size_t i = 1; i < end; ++i) {
    if (reads[i].jump.value_or(1) == 0 && reads[i - 1].staleness() < -kAmaxRounding) return true;
  }
  return false;
}

// Returns the first iteration with a stale scale: if the scale changed in nearly every iteration,
// the first iteration without a change; otherwise, the first missed update.
std::int64_t find_stale_start(const std::vector<ScaleRead>& reads, std::size_t missed) {
  const std::size_t moved = find_last_change(reads, missed);
  std::vector<std::int64_t> moves;
  for (std::size_t i = 0; i <= moved; ++i) {
    if (reads[i].jump.value_or(0) != 0) moves.push_back(reads[i].iteration);
  }
  const auto pause = moves.size() < 3 ? INT64_MAX
                                      : (moves.back() - moves.front()) /
                                            static_cast<std::int64_t>(moves.size() - 1);
  const bool changes_frequently = pause <= kMaxUsualPause && !keeps_maximum(reads, moved);
  return changes_frequently ? reads[moved].iteration + 1 : reads[missed].iteration;
}

// Returns true if an earlier amax can have produced the scale: it is neither below the newest nor
// above the largest amax.
bool was_correct(const std::vector<ScaleRead>& reads, const Series& amax, std::size_t moved) {
  const ScaleRead& read = reads[moved];
  if (std::abs(read.staleness()) <= kMaxScaleError) return true;
  if (moved == 0) return false;
  return read.scale_amax >= reads[moved - 1].amax - kMaxScaleError &&
         read.scale_amax <= largest_amaxes(reads, amax)[moved - 1] + kMaxScaleError;
}

std::optional<Finding> find_by_missed_updates(const Facts& facts, const ScaleSeries& staleness) {
  const std::vector<ScaleRead>& reads = staleness.reads;
  const Series* amax = facts.find(staleness.place, "cur_amax");
  const auto missed = list_missed_updates(reads, *amax);
  if (missed.size() < kMinMissedUpdates) return std::nullopt;
  // A scale that was already off at its last change is wrong, not stale.
  if (!was_correct(reads, *amax, find_last_change(reads, missed.front()))) return std::nullopt;
  const ScaleRead& worst = *std::ranges::max_element(reads, {}, &ScaleRead::staleness);
  return Finding{.cause = "stale_scale",
                 .place = staleness.place,
                 .first = find_stale_start(reads, missed.front()),
                 .last = reads[missed.back()].iteration,
                 .confidence = missed.size() > kMinMissedUpdates ? kProven : kProbable,
                 .summary = fmt::format(
                     "the scale does not change while the tensor outgrows it by up to {:.2g} bits",
                     worst.staleness()),
                 .evidence = {{"scale_staleness", staleness.place, worst.iteration,
                               worst.staleness(), "largest"},
                              {"scale_jump", staleness.place, reads[missed.front()].iteration, 0,
                               "although the tensor grew"}}};
}

std::optional<Finding> find_by_age(const Facts& facts, const ScaleSeries& staleness) {
  const Series* age = facts.find(staleness.place, "scale_age");
  if (age == nullptr) return std::nullopt;
  const auto old = std::ranges::find_if(
      age->points, [](const Point& point) { return point.value >= kMinScaleAge; });
  if (old == age->points.end()) return std::nullopt;
  const std::int64_t first = old->iteration - static_cast<std::int64_t>(old->value) + 1;
  if (first <= age->points.front().iteration + 1)
    return std::nullopt;  // never updated, so intended
  return Finding{
      .cause = "stale_scale",
      .place = staleness.place,
      .first = first,
      .last = age->points.back().iteration,
      .confidence = kProbable,
      .summary = "the amax history is no longer updated",
      .evidence = {{"scale_age", staleness.place, old->iteration, old->value, "iterations"}}};
}

std::vector<Finding> find_stale_scale(const Facts& facts) {
  std::vector<Finding> found;
  for (const ScaleSeries& staleness : scale_series(facts)) {
    auto finding = find_by_missed_updates(facts, staleness);
    if (!finding) finding = find_by_age(facts, staleness);
    if (finding) found.push_back(std::move(*finding));
  }
  return found;
}

}  // namespace

Rule stale_scale() {
  return {.cause = "stale_scale",
          .title = "scale that does not follow its tensor",
          .doc =
              "Delayed scaling computes a scale from the amaxes of earlier iterations. The scale "
              "is stale if it keeps its value after an iteration whose amax was larger than the "
              "amax of the scale. A constant scale is correct while the tensor stays below the "
              "largest amax of the history. After a non-finite amax, a constant scale is not "
              "reported: the maximum of the history is unknown.",
          .stage = Stage::scale,
          .required = {kScales, "cur_amax"},
          .optional = {"scale_headroom", "scale_jump", "scale_age", "scale_inv_min"},
          .recorded_by =
              "LogTensorStats (cur_amax) and ScaleHealth, or LogFp8TensorStats (scale_inv_min, "
              "scale_inv_max), every iteration",
          .alternatives =
              "Forward passes outside of training that do not update the scale; a module call "
              "whose autocast region does not end.",
          .next_step =
              "telens plot RUN --layer '{layer}' --stat scale_staleness --stat scale_jump; then "
              "use PerTensorScaling for the tensor (current scaling): "
              "configs/current_scaling_for_gradients.yaml",
          .find = find_stale_scale};
}

}  // namespace telens::analysis
