#include "hooks/sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <map>
#include <utility>

#include "hooks/config/section_keys.h"
#include "record/rows/tables.h"

namespace telens {
namespace {

std::atomic<SecondsClock> other_clock{nullptr};

}  // namespace

double seconds_now() {
  if (const SecondsClock clock = other_clock.load(std::memory_order_relaxed)) return clock();
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

void set_clock(SecondsClock clock) { other_clock = clock; }

void LookBackBuffer::add(std::int64_t iteration, std::vector<Row> rows) {
  if (lost_ && *lost_ <= iteration - iterations_) lost_.reset();
  if (rows.size() > most_rows_) {
    rows.erase(rows.begin(), rows.end() - static_cast<std::ptrdiff_t>(most_rows_));
    lost_ = iteration;
  }
  rows_ += rows.size();
  if (!rows.empty()) batches_.push_back({iteration, std::move(rows)});
  while (!batches_.empty()) {
    const Batch& oldest = batches_.front();
    const bool too_old = oldest.iteration <= iteration - iterations_;
    if (!too_old && rows_ <= most_rows_) break;
    if (!too_old) lost_ = std::max(lost_.value_or(oldest.iteration), oldest.iteration);
    rows_ -= oldest.rows.size();
    batches_.pop_front();
  }
}

std::vector<Row> LookBackBuffer::take() {
  std::vector<Row> rows;
  rows.reserve(std::exchange(rows_, 0));
  for (const Batch& batch : batches_) rows.insert(rows.end(), batch.rows.begin(), batch.rows.end());
  batches_.clear();
  lost_.reset();
  return rows;
}

namespace {

// Used instead of the mean, so that a step that writes a checkpoint has no effect.
double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 != 0) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

// Ratio of the standard deviation to the median absolute deviation of a normal distribution.
constexpr double kDeviationsOfMedian = 1.4826;

double spread(std::vector<double> values, double center) {
  for (double& each : values) each = std::abs(each - center);
  return kDeviationsOfMedian * median(std::move(values));
}

}  // namespace

void StepDurations::keep(std::vector<double>& kept, std::size_t& next, double seconds) {
  if (kept.size() < kKept) {
    kept.push_back(seconds);
  } else {
    kept[next] = seconds;
    next = (next + 1) % kKept;
  }
}

void StepDurations::add(bool ran, double seconds, double cost) {
  ++steps_;
  if (ran) {
    keep(on_, next_on_, seconds - cost);
  } else {
    keep(off_, next_off_, seconds - cost);
    newest_off_ = steps_;
  }
  if (!off_.empty() && steps_ > 2 * newest_off_ + kFreshFor) forget_what_is_old();
}

void StepDurations::forget_what_is_old() {
  on_.clear();
  off_.clear();
  next_on_ = next_off_ = 0;
}

double StepDurations::hidden_cost() const {
  if (!known()) return 0;
  const double off = median(off_);
  const double by_chance = spread(off_, off) / std::sqrt(static_cast<double>(on_.size()));
  return std::max(0.0, median(on_) - off - by_chance);
}

namespace {

// Longest period between two due iterations. No training is longer.
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

// Runs after which the frequency may rise before the end of a window. Windows may be long: 2000
// steps with `freq: 1000`.
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
  // The assumed extra cost is at most half of the rest of the step.
  const double rest = std::max(0.0, measured_.seconds - charged);
  return charged + std::min((kAssumedCost - 1) * charged, rest / 2);
}

std::int64_t SectionBudget::level_within(double share, std::int64_t lowest) const {
  const auto steps = static_cast<double>(measured_.steps);
  const double others = std::max(0.0, measured_.seconds - cost()) / steps;
  const double of_all_runs = cost() / steps * std::exp2(level_);
  // All measured time is inside features, so no frequency is known to be sufficient.
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
  // A run may use the budget of all steps up to the next run.
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

// Sets the frequency from the cost of the full recording. The full recording is not an excess.
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

namespace {

// Limited to 1: a concurrent read may be counted in one number and not yet in the other.
double select_part(std::int64_t reads, std::int64_t all_reads) {
  if (all_reads == 0) return 0;
  return std::min(1.0, static_cast<double>(reads) / static_cast<double>(all_reads));
}

}  // namespace

SectionSwitches::SectionSwitches(const config::Config& config) {
  for (const config::Section& section : config.sections()) states_.emplace_back(section);
  for (const config::Section& section : config.sections()) {
    for (const config::FeatureEntry& entry : section.features) {
      const config::Value* iterations = entry.config.find(config::kWriteLast);
      if (entry.description->fires && iterations != nullptr) {
        const config::Value* memory = entry.config.find(config::kMostMebibytes);
        add_ring(section, iterations->as_integer(),
                 memory != nullptr ? memory->as_integer() : config::kMostMebibytesByDefault);
      }
    }
  }
}

void SectionSwitches::add_ring(const config::Section& section, std::int64_t iterations,
                               std::int64_t most_mebibytes) {
  if (rings_.size() == kMostRings) {
    raise<ConfigError>("{}: section '{}': at most {} features may have '{}'",
                       to_string(section.location), section.name, kMostRings, config::kWriteLast);
  }
  const std::uint64_t bit = std::uint64_t{1} << rings_.size();
  const auto most_bytes = static_cast<std::size_t>(most_mebibytes) << 20;
  rings_.push_back({section.name, LookBackBuffer(iterations, most_bytes / sizeof(Row))});
  for (SectionState& state : states_) {
    if (!state.keys().kept_by || state.keys().kept_by->section != section.name) continue;
    state.ring_ = bit;
    if (!state.keys().started_by) state.left_ = SectionState::kForever;
  }
}

void SectionSwitches::make_budgets(const Announce& announce, SectionBudget::Switch on_or_off) {
  for (SectionState& state : states_) {
    if (!state.keys().budget) continue;
    state.budget_ = std::make_unique<SectionBudget>(
        *state.section_,
        [this, announce](const std::string& text) {
          changed_ = true;  // layers are asked again
          announce(text);
        },
        on_or_off);
    with_budget_.push_back(&state);
  }
}

void SectionSwitches::end_step(double cost, double waited) {
  if (!measures()) return;
  const double now = seconds_now();
  const std::int64_t all_reads = reads_.exchange(0);
  for (SectionState* state : with_budget_) {
    state->part_of_reads_ = select_part(state->budget()->take_reads(), all_reads);
    state->budget()->charge(cost * state->part_of_reads_);
    // The first step performs one-time initialization.
    if (state->runs()) {
      state->budget()->end_step(
          last_step_ended_ ? std::optional(now - *last_step_ended_) : std::nullopt, waited);
    }
  }
  last_step_ended_ = now;
}

void SectionSwitches::charge_after_step(double cost) {
  for (SectionState* state : with_budget_) state->budget()->charge(cost * state->part_of_reads_);
}

SectionState& SectionSwitches::state(std::string_view section) {
  return *std::ranges::find(states_, section, &SectionState::name);
}

std::vector<std::string> SectionSwitches::start(std::string_view section, std::int64_t iterations) {
  std::vector<std::string> started;
  for (SectionState& state : states_) {
    const bool keeps_for_nobody = state.keys().kept_by && state.ring_ == 0;
    if (!state.keys().started_by || state.keys().started_by->section != section) continue;
    if (keeps_for_nobody) continue;
    changed_ = changed_ || !state.runs();
    // The ending iteration is also counted.
    state.left_ = std::max(state.left_.load(), std::min(iterations, SectionState::kForever) + 1);
    started.push_back(state.name());
  }
  return started;
}

SectionSwitches::Written SectionSwitches::write_kept(std::string_view section, bool last) {
  Written written;
  for (std::size_t i = 0; i < rings_.size(); ++i) {
    if (rings_[i].section != section) continue;
    written.incomplete = rings_[i].rows.overflowed();
    const std::vector<Row> rows = rings_[i].rows.take();
    written.rows = rows.size();
    written_.insert(written_.end(), rows.begin(), rows.end());
    for (SectionState& state : states_) {
      if (!last || state.ring_ != std::uint64_t{1} << i) continue;
      state.left_ = 0;
      changed_ = true;
    }
  }
  return written;
}

void SectionSwitches::keep(std::int64_t iteration, std::vector<Row>& rows) {
  if (rings_.empty()) return;
  const auto kept =
      std::ranges::stable_partition(rows, [](const Row& row) { return row.rings == 0; });
  for (std::size_t i = 0; i < rings_.size(); ++i) {
    std::vector<Row> own;
    std::ranges::copy_if(kept, std::back_inserter(own),
                         [&](const Row& row) { return row.rings >> i & 1U; });
    rings_[i].rows.add(iteration, std::move(own));
  }
  rows.erase(kept.begin(), kept.end());
}

bool SectionSwitches::end_iteration() {
  for (SectionState& state : states_) {
    if (!state.keys().started_by || !state.runs()) continue;
    if (--state.left_ == 0) changed_ = true;
  }
  return std::exchange(changed_, false);
}

}  // namespace telens
