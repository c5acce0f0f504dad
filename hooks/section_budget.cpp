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
  if (std::exchange(changed_in_step_, false) || !seconds) {
    spent_ = counted_;
    return;
  }
  elapsed_ += *seconds;
  counted_ = spent_;
  ++steps_;
}

std::int64_t SectionBudget::decide(const EndedIteration&) {
  const double budget = *section_.keys->budget;
  share_ = elapsed_ > 0 ? counted_ / elapsed_ : 0;
  std::int64_t wanted = level_;
  if (share_ > budget && longest_freq_ << level_ < kLongestPeriod) ++wanted;
  if (share_ < kFarUnder * budget && level_ > 0) --wanted;
  return 1 + wanted;
}

void SectionBudget::follow(std::int64_t, std::span<const std::int64_t> wanted) {
  const std::int64_t level = std::ranges::max(wanted) - 1;
  const std::int64_t steps = std::exchange(steps_, 0);
  elapsed_ = 0;
  spent_.fetch_sub(std::exchange(counted_, 0));
  if (level < 0 || level == level_) return;
  changed_in_step_ = true;
  const bool more_seldom = level > level_;
  level_ = level;
  section_.keys->thinning->set(std::int64_t{1} << level);
  announce_(
      fmt::format("budget of section '{}': {:.3g}% of {} steps on this rank, of {:.3g}%; its "
                  "features run {} as often, in every {}. of their iterations",
                  section_.name, 100 * share_, steps, 100 * *section_.keys->budget,
                  more_seldom ? "half" : "twice", std::int64_t{1} << level));
}

SharedCost::~SharedCost() {
  if (budgets_.empty()) return;
  const double seconds = seconds_now() - begin_;
  for (SectionBudget* budget : budgets_) budget->charge(seconds);
}

void SharedCost::add(SectionBudget* budget) {
  if (budget == nullptr || std::ranges::find(budgets_, budget) != budgets_.end()) return;
  budgets_.push_back(budget);
}

void SharedCost::count_reads() {
  for (SectionBudget* budget : budgets_) budget->count_read();
}

}  // namespace telens
