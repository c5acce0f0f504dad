#include "hooks/section_budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace telens {
namespace {

// Iterations between two due ones beyond which nothing is thinned further: no run has as many.
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

}  // namespace

SectionBudget::SectionBudget(const config::Section& section, Announce announce)
    : section_(section), announce_(std::move(announce)), longest_freq_(longest_freq(section)) {}

std::int64_t SectionBudget::window() const {
  return std::max(kFewestSteps, 2 * longest_freq_ << level_);
}

void SectionBudget::end_step(std::optional<double> seconds) {
  const double cost = spent_.exchange(0);
  const bool ran = ran_.exchange(false);
  if (std::exchange(changed_in_step_, false) || !seconds) return;
  ++steps_;
  ++measured_.steps;
  measured_.seconds += *seconds;
  measured_.cost += cost;
  if (ran) ++measured_.runs;
}

bool SectionBudget::is_spent_early() const {
  const double others = std::max(0.0, measured_.seconds - measured_.cost);
  const auto steps = static_cast<double>(measured_.steps);
  const double to_come = others / steps * std::max(0.0, static_cast<double>(window()) - steps);
  return measured_.cost > *section_.keys->budget * (measured_.seconds + to_come);
}

std::int64_t SectionBudget::decide(const EndedIteration&) {
  decided_from_ = measured_;
  at_end_ = steps_ >= window();
  const double budget = *section_.keys->budget;
  const bool can_be_thinned = longest_freq_ << level_ < kLongestPeriod;
  if (!at_end_) return can_be_thinned && is_spent_early() ? 1 + level_ + 1 : 0;
  if (measured_.runs < kFewestRuns) return 0;
  std::int64_t wanted = level_;
  if (measured_.share() > budget && can_be_thinned) ++wanted;
  if (measured_.share() < kFarUnder * budget && level_ > 0) --wanted;
  return 1 + wanted;
}

void SectionBudget::follow(std::int64_t, std::span<const std::int64_t> wanted) {
  const std::int64_t level = std::ranges::max(wanted) - 1;
  if (level >= 0 && level != level_) {
    change_to(level);
  } else if (!at_end_) {
    next_decision_ = std::min(2 * next_decision_, window());
  } else {
    begin_window();
    if (decided_from_.runs >= kFewestRuns) measured_ = {};
  }
}

void SectionBudget::begin_window() {
  steps_ = 0;
  next_decision_ = kFewestSteps;
}

void SectionBudget::change_to(std::int64_t level) {
  const bool more_seldom = level > level_;
  level_ = level;
  changed_in_step_ = true;
  begin_window();
  measured_ = {};
  section_.keys->thinning->set(std::int64_t{1} << level);
  announce_(fmt::format(
      "budget of section '{}': {:.3g}% of {} steps on this rank, of {:.3g}%; its features run {} "
      "as often, in {} iterations",
      section_.name, 100 * decided_from_.share(), decided_from_.steps, 100 * *section_.keys->budget,
      more_seldom ? "half" : "twice",
      level == 0 ? "all of their" : fmt::format("1 of {} of their", std::int64_t{1} << level)));
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
