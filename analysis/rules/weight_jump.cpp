#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/baseline.h"
#include "analysis/facts.h"
#include "analysis/rules/recorded_rate.h"
#include "analysis/rules/rules.h"
#include "analysis/rules/scalar_reads.h"

namespace telens::analysis {
namespace {

constexpr double kMinChange = 0.03;        // bits: a change of the norm by 2 % in one step
constexpr double kMinCommonChange = 0.01;  // bits, if most weights change in the same step
constexpr std::size_t kMinCommonWeights = 3;
constexpr double kTimesLatestMedian = 4;   // times the median of the latest changes
constexpr double kTimesMedianChange = 12;  // times the median of all earlier changes
constexpr double kTimesLargestChange = 3;  // times the largest earlier change
constexpr std::size_t kMinPastChanges = 5;
// Bits per iteration. In a training that learns, no weight changes by more, whatever its past: a
// step of AdamW with a learning rate of 0.01 changes a weight that starts at 0.02 by 0.16 bits.
constexpr double kMaxGrowthPerStep = 0.5;
constexpr std::size_t kMaxFindings = 3;
// If more than this share of the weights jumps in one step, the step of the optimizer is the cause.
constexpr double kMinCommonShare = 0.6;

struct WeightJump {
  Place place;
  std::int64_t iteration = 0;
  double before = 0, after = 0;  // root mean squares
  bool is_sufficient = false;    // reported regardless of other weights
  bool is_unusual = false;       // above its latest changes; reported if most weights jump
  double change() const { return std::abs(bits(after) - bits(before)); }
};

// Returns true if the change is much larger than the latest changes. This is sufficient only if
// most weights jump in the same step.
bool exceeds_latest_changes(const WeightJump& jump, const std::vector<double>& changes) {
  constexpr std::size_t kNewest = 6;
  const auto newest = std::span(changes).last(std::min(kNewest, changes.size()));
  const double usual = kTimesLatestMedian * median({newest.begin(), newest.end()});
  const double largest = kTimesLargestChange * *std::ranges::max_element(newest);
  return jump.change() > std::max({kMinCommonChange, usual, largest});
}

// Returns true if the change is much larger than all earlier changes. The median of the whole past
// costs O(past), so it is computed last, only for changes of 3 times the largest earlier change.
bool exceeds_all_changes(const WeightJump& jump, const std::vector<double>& changes,
                         double largest) {
  if (jump.change() <= std::max(kMinChange, kTimesLargestChange * largest)) return false;
  return jump.change() > kTimesMedianChange * median(changes);
}

// Returns true if the weight changes by more than the optimizer's update can cause. By the triangle
// inequality, a step changes the root mean square of a weight by at most the root mean square of
// the update. The update is measured on a sample, so the limit is a multiple of it.
bool exceeds_update(const WeightJump& jump, const Point& before, const Series* updates) {
  constexpr double kTimesUpdate = 4;
  constexpr double kMinRelativeChange = 0.02;  // relative to the weight
  if (updates == nullptr || jump.iteration != before.iteration + 1) return false;
  const auto update = updates->at(before.iteration);
  const double change = std::abs(jump.after - jump.before);
  return update && std::isfinite(change) && change > kTimesUpdate * *update &&
         change > kMinRelativeChange * jump.before;
}

std::vector<WeightJump> find_jumps(const Series& sizes, const Series* updates) {
  std::vector<WeightJump> jumps;
  std::vector<double> changes;
  double largest = 0;
  for (std::size_t i = 1; i < sizes.points.size(); ++i) {
    WeightJump jump{sizes.place, sizes.points[i].iteration, sizes.points[i - 1].value,
                    sizes.points[i].value};
    if (changes.size() >= kMinPastChanges && std::isfinite(jump.after)) {
      jump.is_sufficient = exceeds_all_changes(jump, changes, largest);
      jump.is_unusual = exceeds_latest_changes(jump, changes);
    } else {
      jump.is_sufficient = exceeds_update(jump, sizes.points[i - 1], updates);
    }
    const auto steps = static_cast<double>(jump.iteration - sizes.points[i - 1].iteration);
    const bool too_large = jump.before > 0 && std::isfinite(jump.after) &&
                           bits(jump.after) - bits(jump.before) > kMaxGrowthPerStep * steps;
    if (jump.is_sufficient || jump.is_unusual || too_large) jumps.push_back(jump);
    changes.push_back(jump.change());
    largest = std::max(largest, jump.change());
  }
  return jumps;
}

bool are_most(std::size_t group, std::size_t weights) {
  return group > 1 && static_cast<double>(group) > kMinCommonShare * static_cast<double>(weights);
}

Finding weight_jump_finding(const Facts& facts, const std::vector<WeightJump>& group,
                            std::size_t weights) {
  const bool are_most_weights = are_most(group.size(), weights);
  const WeightJump& largest = *std::ranges::max_element(group, {}, &WeightJump::change);
  std::string summary =
      fmt::format("the root mean square of the weight changes from {:.3g} to {:.3g} in one step",
                  largest.before, largest.after);
  summary += are_most_weights ? fmt::format(
                                    "; {} of {} weights jump in this step: the learning rate or "
                                    "the optimizer is the cause",
                                    group.size(), weights)
                              : and_others(group.size() - 1, "weight");
  return {.cause = "weight_jump",
          .place = largest.place,
          .first = largest.iteration,
          .last = facts.last_iteration(),
          .confidence = kProven,
          .summary = std::move(summary),
          .evidence = {{"root mean square", largest.place, largest.iteration, largest.after, ""},
                       {"root mean square", largest.place, largest.iteration - 1, largest.before,
                        "before"}}};
}

// Adds a jump of the recorded learning rate as evidence to a jump of weights that follows it, or as
// a separate finding if only the loss shows its effect.
void add_recorded_rate(const Facts& facts, std::vector<Finding>& found) {
  // Iterations; the step changes the weights of the next iteration.
  constexpr std::int64_t kMaxDelay = 2;
  const auto rate = first_rate_jump(facts);
  if (!rate) return;
  const std::vector<Evidence> evidence{{rate->name, {}, rate->iteration, rate->after, ""},
                                       {rate->name, {}, rate->previous, rate->before, "before"}};
  for (Finding& each : found) {
    if (each.first < rate->iteration || each.first > rate->iteration + kMaxDelay) continue;
    each.summary += fmt::format("; the learning rate rises from {:.3g} to {:.3g} in iteration {}",
                                rate->before, rate->after, rate->iteration);
    each.evidence.insert(each.evidence.end(), evidence.begin(), evidence.end());
    return;
  }
  if (!rate->loss_rises) return;
  found.push_back({.cause = "weight_jump",
                   .place = {},
                   .first = rate->iteration,
                   .last = facts.last_iteration(),
                   .confidence = kProven,
                   .summary = fmt::format("the learning rate rises from {:.3g} to {:.3g}, {:.2g} "
                                          "times its earlier maximum, and the loss rises",
                                          rate->before, rate->after, rate->after / rate->largest),
                   .evidence = evidence});
}

struct UpdateJump {
  std::string update;  // name of the scalar
  std::string rate;    // name of the scalar
  std::int64_t iteration = 0;
  std::int64_t previous = 0;     // last recorded iteration before
  double before = 0, after = 0;  // norm of the update / norm of the weights
  double rate_before = 0, rate_after = 0;
};

constexpr ShiftOptions kUpdateGrowth{.least_bits = 1, .least_past = 8, .sustained = 2};
constexpr std::string_view kUpdateScalar = "update_to_weight";

// Returns the updates divided by their learning rate. Excludes updates of 0: a loss scaler skipped
// the step.
std::vector<Point> divide_by_rate(const Scalars& updates, const Scalars& rates) {
  std::vector<Point> steps;
  for (const auto& [iteration, update] : updates.points) {
    const auto rate = value_at(rates, iteration);
    if (rate && *rate > 0 && update > 0 && std::isfinite(update)) {
      steps.push_back({iteration, update / *rate});
    }
  }
  return steps;
}

// Returns true if a weight changes in this step after it did not change in the last records.
bool is_any_weight_unfrozen(const Facts& facts, std::int64_t iteration) {
  constexpr std::ptrdiff_t kUnchangedPoints = 3;  // points
  for (const Series& sizes : root_mean_squares(facts, TensorName::weight)) {
    const auto now = std::ranges::upper_bound(sizes.points, iteration, {}, &Point::iteration);
    if (now == sizes.points.end() || now - sizes.points.begin() < kUnchangedPoints) continue;
    const double before = (now - 1)->value;
    const bool was_unchanged = std::all_of(
        now - kUnchangedPoints, now, [&](const Point& point) { return point.value == before; });
    if (was_unchanged && now->value != before) return true;
  }
  return false;
}

std::optional<UpdateJump> find_update_jump(const Facts& facts, const Scalars& updates) {
  const Scalars* rates = scalar_beside(facts, updates, "lr");
  if (rates == nullptr) return std::nullopt;
  const std::vector<Point> steps = divide_by_rate(updates, *rates);
  const auto shift = first_shift(steps, kUpdateGrowth);
  if (!shift || shift->bits < 0 || is_any_weight_unfrozen(facts, shift->first)) return std::nullopt;
  const auto first = std::ranges::lower_bound(steps, shift->first, {}, &Point::iteration);
  const std::int64_t previous = (first - 1)->iteration;
  return UpdateJump{.update = updates.name,
                    .rate = rates->name,
                    .iteration = shift->first,
                    .previous = previous,
                    .before = *value_at(updates, previous),
                    .after = *value_at(updates, shift->first),
                    .rate_before = *value_at(*rates, previous),
                    .rate_after = *value_at(*rates, shift->first)};
}

// Returns the first update that is at least twice as large as usual for its learning rate: an
// optimizer that lost its state repeats its first steps. Larger updates because weights are no
// longer frozen are not a jump.
std::optional<UpdateJump> first_update_jump(const Facts& facts) {
  std::optional<UpdateJump> first;
  for (const Scalars& scalars : facts.scalars()) {
    if (!scalars.name.ends_with(kUpdateScalar)) continue;
    const auto jump = find_update_jump(facts, scalars);
    if (jump && (!first || jump->iteration < first->iteration)) first = jump;
  }
  return first;
}

// Adds a finding for updates that grow at the same learning rate, unless a weight already shows it.
void add_recorded_update(const Facts& facts, std::vector<Finding>& found) {
  constexpr std::int64_t kSoon = 2;  // iterations
  const auto jump = first_update_jump(facts);
  if (!jump) return;
  const auto is_known = [&](const Finding& each) {
    return std::abs(each.first - jump->iteration) <= kSoon;
  };
  if (std::ranges::any_of(found, is_known)) return;
  found.push_back(
      {.cause = "weight_jump",
       .place = {},
       .first = jump->iteration,
       .last = facts.last_iteration(),
       .confidence = kProbable,
       .summary = fmt::format("the optimizer's update grows from {:.2g} % of the weights to {:.2g} "
                              "% at the same learning rate: its state (moments) was lost or reset",
                              100 * jump->before, 100 * jump->after),
       .evidence = {{jump->update, {}, jump->iteration, jump->after, ""},
                    {jump->update, {}, jump->previous, jump->before, "before"},
                    {jump->rate, {}, jump->iteration, jump->rate_after, ""},
                    {jump->rate, {}, jump->previous, jump->rate_before, "before"}},
       .next_step =
           fmt::format("check the code before iteration {}: save and load optimizer.state_dict() "
                       "with the model's state; a new optimizer starts without moments",
                       jump->iteration)});
}

// Adds a finding if the first update replaces a large part of the weights and the loss is larger
// afterwards: the learning rate is too large from the start.
void add_large_first_update(const Facts& facts, std::vector<Finding>& found) {
  // Share of the weights. Adam with a learning rate of 1e-3 changes weights of 0.02 by 5 %.
  constexpr double kMinUpdate = 0.2;
  constexpr double kMinRise = 1.1;        // of the median of the losses after the update
  constexpr std::size_t kMaxLosses = 10;  // after the update
  constexpr std::size_t kMinLosses = 5;
  for (const Scalars* updates : scalars_named(facts, kUpdateScalar)) {
    if (updates->points.empty()) continue;
    const Point& update = updates->points.front();
    if (!(update.value > kMinUpdate) || update.iteration != facts.first_iteration()) continue;
    const Scalars* losses = scalar_of_rank(facts, "loss", updates->rank);
    if (losses == nullptr) continue;
    const auto before = value_at(*losses, update.iteration);
    if (!before || !(*before > 0)) continue;
    std::vector<double> after;
    for (const Point& loss : losses->points) {
      if (loss.iteration <= update.iteration || after.size() == kMaxLosses) continue;
      after.push_back(std::isfinite(loss.value) ? loss.value
                                                : std::numeric_limits<double>::infinity());
    }
    // The losses of small batches scatter, so that some are larger in every training.
    const bool all_rise = std::ranges::all_of(after, [&](double loss) { return loss > *before; });
    if (after.size() < kMinLosses || !all_rise) continue;
    const double later = median(std::move(after));
    if (!(later > kMinRise * *before)) continue;
    Finding finding{
        .cause = "weight_jump",
        .place = {.rank = updates->rank},
        .first = update.iteration,
        .last = facts.last_iteration(),
        .confidence = kProbable,
        .summary = fmt::format("the first update is {:.2g} times as large as the weights, and the "
                               "loss rises from {:.3g} to {:.3g}: the learning rate is too large",
                               update.value, *before, later),
        .evidence = {{updates->name, {}, update.iteration, update.value, ""},
                     {"loss", {}, update.iteration, *before, "before"}},
        .next_step =
            "divide the learning rate by 10, or increase it from 0 over the first steps "
            "(warm-up)"};
    if (const Scalars* rates = scalar_beside(facts, *updates, "lr")) {
      if (const auto rate = value_at(*rates, update.iteration)) {
        finding.evidence.push_back({rates->name, {}, update.iteration, *rate, ""});
      }
    }
    found.insert(found.begin(), std::move(finding));
    return;
  }
}

std::vector<Finding> find_weight_jump(const Facts& facts) {
  std::vector<WeightJump> jumps;
  const std::vector<Series> weights = root_mean_squares(facts, TensorName::weight);
  for (const Series& sizes : weights) {
    const Series* updates = facts.find(sizes.place, "update_rms");
    std::ranges::move(find_jumps(sizes, updates), std::back_inserter(jumps));
  }
  std::ranges::stable_sort(jumps, {}, &WeightJump::iteration);
  std::vector<Finding> found;
  for (auto begin = jumps.begin(); begin != jumps.end();) {
    const auto end = std::find_if(begin, jumps.end(), [&](const WeightJump& jump) {
      return jump.iteration != begin->iteration;
    });
    std::vector<WeightJump> group(begin, end);
    begin = end;
    if (group.size() < kMinCommonWeights || !are_most(group.size(), weights.size())) {
      std::erase_if(group, [](const WeightJump& jump) { return !jump.is_sufficient; });
    }
    if (group.empty()) continue;
    found.push_back(weight_jump_finding(facts, group, weights.size()));
    if (found.size() == kMaxFindings) break;
  }
  add_recorded_rate(facts, found);
  add_recorded_update(facts, found);
  add_large_first_update(facts, found);
  return found;
}

}  // namespace

Rule weight_jump() {
  return {
      .cause = "weight_jump",
      .title = "unusually large weight update",
      .doc =
          "The root mean square of a weight changes by at least 2 % in one step, by 12 times "
          "the usual change and by 3 times the largest change so far. If most weights change, "
          "0.7 % and 4 times the latest changes are enough, and the cause is the learning rate "
          "or the optimizer. A step in which most weights grow by 41 % is always reported. A "
          "recorded learning rate that is at least 3 times its earlier maximum is named in the "
          "finding, or is a finding by itself if the loss rises after it. Also reported: "
          "updates in debug.watch_optimizer that are at least twice their usual size for the "
          "learning rate, which means that the optimizer lost its state. In the first "
          "iterations: a first update of more than 20 % of the weights after which the loss is "
          "10 % larger, and a weight that changes by more than 4 times the measured update of the "
          "optimizer, so that something else wrote it.",
      .stage = Stage::update,
      .required = {kSizes},
      .optional = {"numel", "mean", "update_rms"},
      .recorded_by = "LogTensorStats of weights (l2_norm and numel, or std and mean)",
      .alternatives = "A checkpoint that was loaded; weights that are clipped or normalized.",
      .next_step =
          "telens plot RUN --layer '{layer}' --tensor weight --stat l2_norm; compare the learning "
          "rate and the gradient of this iteration with earlier ones",
      .find = find_weight_jump};
}

}  // namespace telens::analysis
