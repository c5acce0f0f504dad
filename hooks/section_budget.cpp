#include "hooks/section_budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "record/rows/tables.h"

namespace telens {
namespace {

// Longest period between two due iterations; no run is longer, so features are not thinned further.
constexpr std::int64_t kLongestPeriod = std::int64_t{1} << 30;

std::int64_t longest_freq(const config::Section& section) {
  std::int64_t longest = 1;
  for (const config::FeatureEntry& entry : section.features) {
    for (const config::Selection& selection : entry.selections) {
      longest = std::max(longest, selection.schedule.freq());
    }
  }
  return std::min(longest, kLongestPeriod);
}

// Runs after which a rise may be decided before the end of a window, which may be long: with `freq:
// 1000` it has 2000 steps.
constexpr std::int64_t kRunsToRise = 8;

std::string in_words(std::int64_t level) {
  return level == 0 ? std::string(record::kAllIterations)
                    : fmt::format("1 of {}", std::int64_t{1} << level);
}

}  // namespace

SectionBudget::SectionBudget(const config::Section& section, Announce announce, Switch on_or_off)
    : section_(section),
      options_(*section.keys->budget),
      announce_(std::move(announce)),
      switch_(on_or_off),
      longest_freq_(longest_freq(section)),
      is_full_(options_.full_steps > 0) {}

std::int64_t SectionBudget::window() const {
  return std::max(kFewestSteps, 2 * longest_freq_ << level_);
}

void SectionBudget::end_step(std::optional<double> seconds, double waited) {
  const double charged = spent_.exchange(0);
  const bool ran = ran_.exchange(false);
  if (is_full_) {
    ++full_steps_;
    if (!seconds) unmeasured_ += charged;
  } else {
    const double hidden = ran ? durations_.hidden_cost() : 0;
    overspent_ += charged + hidden - options_.share * seconds.value_or(0);
    overspent_ = std::max(0.0, overspent_);
  }
  if (std::exchange(changed_in_step_, false) || !seconds) return;
  durations_.add(ran, *seconds - waited, charged);
  ++steps_;
  ++measured_.steps;
  measured_.seconds += *seconds;
  measured_.charged += charged;
  if (ran) ++measured_.runs;
}

double SectionBudget::cost() const {
  const double charged = measured_.charged;
  if (durations_.known()) {
    return charged + static_cast<double>(measured_.runs) * durations_.hidden_cost();
  }
  // Assumes at most half of the step's other time.
  const double rest = std::max(0.0, measured_.seconds - charged);
  return charged + std::min((kAssumedCost - 1) * charged, rest / 2);
}

std::int64_t SectionBudget::level_within(double share, std::int64_t lowest) const {
  const auto steps = static_cast<double>(measured_.steps);
  const double others = std::max(0.0, measured_.seconds - cost()) / steps;
  const double of_all_runs = cost() / steps * std::exp2(level_);
  // Time only advances inside features, so the required frequency is unknown.
  if (others <= 0) return lowest;
  std::int64_t level = lowest;
  while (longest_freq_ << level < kLongestPeriod) {
    const double cost = of_all_runs / std::exp2(level);
    if (cost <= share * (others + cost)) break;
    ++level;
  }
  return level;
}

bool SectionBudget::decides(std::int64_t) const {
  if (is_off_) return false;
  if (!is_full_) return steps_ >= next_decision_;
  return full_steps_ < kFewestSteps || full_steps_ % kFewestSteps == 0 ||
         full_steps_ >= options_.full_steps;
}

bool SectionBudget::full_recording_is_over() const {
  return full_steps_ >= options_.full_steps ||
         unmeasured_ + measured_.charged >= options_.full_seconds;
}

std::int64_t SectionBudget::decide(const EndedIteration&) {
  if (switch_ == Switch::off) return kOff;
  decided_from_ = measured_;
  decided_share_ = measured_.seconds > 0 ? cost() / measured_.seconds : 0;
  share_is_estimated_ = !durations_.known();
  at_end_ = steps_ >= window();
  if (is_full_ && !full_recording_is_over()) return 0;
  if (measured_.runs < kFewestRuns) return is_full_ ? 1 : 0;
  // The steps up to the next run pay for a run.
  const double of_one_run = cost() / static_cast<double>(measured_.runs);
  const double part = overspent_ > of_one_run ? kPartWhileSaving : 1;
  const double budget = part * options_.share;
  const std::int64_t wanted = level_within(budget, level_);
  const bool has_to_compare = wanted == 0 && !durations_.known();
  if (has_to_compare || wanted > level_) {
    only_compares_ = has_to_compare;
    return 1 + std::max<std::int64_t>(wanted, 1);
  }
  const bool may_rise = windows_ + 1 >= patience_ && (at_end_ || measured_.runs >= kRunsToRise);
  if (!may_rise) return 1 + level_;
  const double room = only_compares_ ? 1 : kRoomToRise;
  return 1 + std::min(level_, level_within(room * budget, 0));
}

void SectionBudget::follow(std::int64_t, std::span<const std::int64_t> wanted) {
  const std::int64_t highest = std::ranges::max(wanted);
  if (highest == kOff) {
    is_off_ = true;
    return;
  }
  const std::int64_t level = highest - 1;
  if (is_full_) {
    if (level >= 0) end_full_recording(level);
  } else if (level >= 0 && level != level_) {
    change_to(level);
  } else if (!at_end_) {
    next_decision_ = std::min(2 * next_decision_, window());
  } else {
    ++windows_;
    begin_window();
    if (decided_from_.runs >= kFewestRuns) measured_ = {};
  }
}

// Sets the frequency from the cost of the full recording, which is not charged itself.
void SectionBudget::end_full_recording(std::int64_t level) {
  is_full_ = false;
  if (level > 0) return change_to(level);
  begin_window();
  if (decided_from_.runs >= kFewestRuns) measured_ = {};
}

void SectionBudget::begin_window() {
  steps_ = 0;
  next_decision_ = kFewestRuns;
}

void SectionBudget::change_to(std::int64_t level) {
  const std::int64_t before = std::exchange(level_, level);
  const bool rises = level < before;
  const bool takes_rise_back = std::exchange(has_risen_, rises) && !rises && !only_compares_;
  if (takes_rise_back) patience_ = std::min(2 * patience_, kMostPatience);
  windows_ = 0;
  changed_in_step_ = true;
  begin_window();
  measured_ = {};
  thinning_.set(std::int64_t{1} << level);
  announce_(
      fmt::format("budget of section '{}': its {}overhead was {:.3g}% of the time of {} steps on "
                  "this rank (budget {:.3g}%), so its features{} (before: {})",
                  section_.name, share_is_estimated_ ? "estimated " : "", 100 * decided_share_,
                  decided_from_.steps, 100 * options_.share,
                  record::describe_share(in_words(level)), in_words(before)));
}

SharedCost::~SharedCost() {
  if (budgets_.empty()) return;
  const double seconds = seconds_now() - begin_;
  for (SectionBudget* budget : budgets_) budget->charge(seconds);
}

void SharedCost::add(SectionBudget* budget) {
  if (budget == nullptr || std::ranges::find(budgets_, budget) != budgets_.end()) return;
  budgets_.push_back(budget);
  budget->note_run();
}

void SharedCost::count_reads() {
  for (SectionBudget* budget : budgets_) budget->count_read();
}

}  // namespace telens
