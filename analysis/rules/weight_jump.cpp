#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <span>
#include <vector>

#include "analysis/baseline.h"
#include "analysis/rules/recorded_rate.h"
#include "analysis/rules/recorded_update.h"
#include "analysis/rules/rules.h"
#include "analysis/sizes.h"

namespace telens::analysis {
namespace {

constexpr double kLeast = 0.03;          // bits: a change of the norm by 2 % in one step
constexpr double kLeastTogether = 0.01;  // bits, where most weights change in the same step
constexpr std::size_t kLeastWeights = 3;
constexpr double kTimesUsualTogether = 4;
constexpr double kTimesUsual = 12;     // the usual change
constexpr double kTimesLargest = 3;    // the largest change so far
constexpr std::size_t kLeastPast = 5;  // changes
// bits in an iteration: steps that no weight takes in a training that learns, whatever it did
// before. One of AdamW with a learning rate of 0.01 changes a weight that begins with 0.02 by 0.16.
constexpr double kTooLarge = 0.5;
constexpr std::size_t kMostFindings = 3;
// Where more weights than this jump together, the optimizer's step is the cause.
constexpr double kMost = 0.6;

struct Jump {
  Place place;
  std::int64_t iteration = 0;
  double before = 0, after = 0;  // root mean squares
  bool alone = false;            // a finding whatever other weights do
  bool unusual = false;          // one where most weights do so; else too large in any training
  double change() const { return std::abs(bits(after) - bits(before)); }
};

// Larger than the last changes by far: a sign where most weights do so in the same step.
bool is_unusual(const Jump& jump, const std::vector<double>& changes) {
  constexpr std::size_t kNewest = 6;
  const auto newest = std::span(changes).last(std::min(kNewest, changes.size()));
  const double usual = kTimesUsualTogether * median({newest.begin(), newest.end()});
  const double largest = kTimesLargest * *std::ranges::max_element(newest);
  return jump.change() > std::max({kLeastTogether, usual, largest});
}

// The median of a whole run costs as much as the run is long: it is asked for last, of changes of
// which each is 3 times as large as all before.
bool is_unusual_alone(const Jump& jump, const std::vector<double>& changes, double largest) {
  if (jump.change() <= std::max(kLeast, kTimesLargest * largest)) return false;
  return jump.change() > kTimesUsual * median(changes);
}

// By the triangle inequality a step changes the root mean square of a weight by at most that of the
// update. The update is measured on a sample, so a weight has to change by several of it.
bool exceeds_update(const Jump& jump, const Point& before, const Series* updates) {
  constexpr double kTimesUpdate = 4;
  constexpr double kLeastChange = 0.02;  // part of the weight
  if (updates == nullptr || jump.iteration != before.iteration + 1) return false;
  const auto update = updates->at(before.iteration);
  const double change = std::abs(jump.after - jump.before);
  return update && std::isfinite(change) && change > kTimesUpdate * *update &&
         change > kLeastChange * jump.before;
}

std::vector<Jump> find_jumps(const Series& sizes, const Series* updates) {
  std::vector<Jump> jumps;
  std::vector<double> changes;
  double largest = 0;
  for (std::size_t i = 1; i < sizes.points.size(); ++i) {
    Jump jump{sizes.place, sizes.points[i].iteration, sizes.points[i - 1].value,
              sizes.points[i].value};
    if (changes.size() >= kLeastPast && std::isfinite(jump.after)) {
      jump.alone = is_unusual_alone(jump, changes, largest);
      jump.unusual = is_unusual(jump, changes);
    } else {
      jump.alone = exceeds_update(jump, sizes.points[i - 1], updates);
    }
    const auto steps = static_cast<double>(jump.iteration - sizes.points[i - 1].iteration);
    const bool too_large = jump.before > 0 && std::isfinite(jump.after) &&
                           bits(jump.after) - bits(jump.before) > kTooLarge * steps;
    if (jump.alone || jump.unusual || too_large) jumps.push_back(jump);
    changes.push_back(jump.change());
    largest = std::max(largest, jump.change());
  }
  return jumps;
}

bool are_most(std::size_t together, std::size_t weights) {
  return together > 1 && static_cast<double>(together) > kMost * static_cast<double>(weights);
}

Finding weight_jump_finding(const Facts& facts, const std::vector<Jump>& together,
                            std::size_t weights) {
  const bool all = are_most(together.size(), weights);
  const Jump& largest = *std::ranges::max_element(together, {}, &Jump::change);
  std::string summary =
      fmt::format("the root mean square of the weight goes from {:.3g} to {:.3g} in one step",
                  largest.before, largest.after);
  summary += all ? fmt::format(", with {} of {} weights: the learning rate or the optimizer",
                               together.size(), weights)
                 : and_others(together.size() - 1, "weight");
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

// A recorded learning rate is evidence for a jump that follows it, or a separate finding if only
// the loss shows its effect.
void add_recorded_rate(const Facts& facts, std::vector<Finding>& found) {
  constexpr std::int64_t kShowsWithin = 2;  // iterations: the weights of the next one are changed
  const auto rate = first_rate_jump(facts);
  if (!rate) return;
  const std::vector<Evidence> evidence{{rate->name, {}, rate->iteration, rate->after, ""},
                                       {rate->name, {}, rate->previous, rate->before, "before"}};
  for (Finding& each : found) {
    if (each.first < rate->iteration || each.first > rate->iteration + kShowsWithin) continue;
    each.summary += fmt::format("; the learning rate goes from {:.3g} to {:.3g} in iteration {}",
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
                   .summary = fmt::format("the learning rate goes from {:.3g} to {:.3g}, {:.2g} "
                                          "times the largest before, and the loss rises",
                                          rate->before, rate->after, rate->after / rate->largest),
                   .evidence = evidence});
}

// Updates that grow at a constant learning rate, if no weight shows it by itself.
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

std::vector<Finding> find_weight_jump(const Facts& facts) {
  std::vector<Jump> jumps;
  const std::vector<Series> weights = root_mean_squares(facts, TensorName::weight);
  for (const Series& sizes : weights) {
    const Series* updates = facts.find(sizes.place, "update_rms");
    std::ranges::move(find_jumps(sizes, updates), std::back_inserter(jumps));
  }
  std::ranges::stable_sort(jumps, {}, &Jump::iteration);
  std::vector<Finding> found;
  for (auto begin = jumps.begin(); begin != jumps.end();) {
    const auto end = std::find_if(
        begin, jumps.end(), [&](const Jump& jump) { return jump.iteration != begin->iteration; });
    std::vector<Jump> together(begin, end);
    begin = end;
    if (together.size() < kLeastWeights || !are_most(together.size(), weights.size())) {
      std::erase_if(together, [](const Jump& jump) { return !jump.alone; });
    }
    if (together.empty()) continue;
    found.push_back(weight_jump_finding(facts, together, weights.size()));
    if (found.size() == kMostFindings) break;
  }
  add_recorded_rate(facts, found);
  add_recorded_update(facts, found);
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
          "learning rate, which means that the optimizer lost its state. In the first iterations: "
          "a weight that changes by more than 4 times the measured update of the optimizer, so "
          "that something else wrote it.",
      .stage = Stage::update,
      .required = {kSizes},
      .optional = {"numel", "mean", "update_rms"},
      .recorded_by = "LogTensorStats of weights (l2_norm and numel, or std and mean)",
      .alternatives = "A checkpoint that was loaded; weights that are clipped or normalized.",
      .next_step =
          "telens plot RUN --layer '{layer}' --tensor weight --stat l2_norm; debug.step(loss, "
          "lr=...) also records the learning rate",
      .find = find_weight_jump};
}

}  // namespace telens::analysis
