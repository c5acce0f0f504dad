// The `budget: 3%` of a section. Its first steps are recorded in full (config::Budget). After them
// its features run in every second, fourth, eighth, ... of their iterations, so that their cost
// stays within that share of the step time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hooks/clock.h"
#include "hooks/config/config.h"
#include "hooks/decisions.h"
#include "hooks/step_durations.h"
#include "hooks/thinning.h"

namespace telens {

class SectionBudget final : public Decider {
 public:
  // Called with a sentence about every change.
  using Announce = std::function<void(const std::string& text)>;
  // `off`: this rank measures and never thins. If one rank is off, all ranks are.
  enum class Switch : std::uint8_t { on, off };

  // The section has a budget.
  SectionBudget(const config::Section& section, Announce announce, Switch on_or_off = Switch::on);

  // Adds time that features of the section have cost. Any thread.
  void charge(double seconds) { spent_.fetch_add(seconds, std::memory_order_relaxed); }

  // Notes that features of the section are on in this iteration. Any thread.
  void note_run() { ran_.store(true, std::memory_order_relaxed); }

  // Counts a tensor read for the section. Any thread.
  void count_read() { reads_.fetch_add(1, std::memory_order_relaxed); }
  // Returns the reads since the last call.
  std::int64_t take_reads() { return reads_.exchange(0, std::memory_order_relaxed); }

  // Ends an iteration that took `seconds`, cost included, of which ranks `waited` for each other;
  // nullopt if the duration is unknown.
  void end_step(std::optional<double> seconds, double waited = 0);

  // The section runs in every 2^level-th of the due iterations.
  std::int64_t level() const { return level_; }
  // Returns true during the first steps, which are recorded whatever their cost.
  bool records_in_full() const { return is_full_; }
  const Thinning& thinning() const { return thinning_; }

  // Minimum number of iterations with features on before the first decision: a single one does not
  // show how often features with their own schedule run. With `full_steps: 0` the first decision
  // may therefore come after two steps; the cost beyond the budget is saved afterwards.
  static constexpr std::int64_t kFewestRuns = 2;
  // Steps of the shortest window; features do not run more often before its end. If one step of
  // eight takes twice as long, the share changes by a ninth, far less than the factor of two
  // between levels.
  static constexpr std::int64_t kFewestSteps = 8;
  // While more was spent than the budget and a single run allow, as before the first decision,
  // features only get this part of the budget: one level above the sufficient one, until the excess
  // is saved.
  static constexpr double kPartWhileSaving = 0.5;
  // Features run more often again if that is expected to take at most this part of the budget, so
  // that costs that vary by a third do not make frequencies oscillate.
  static constexpr double kRoomToRise = 0.75;
  // Before steps with and without features can be compared, the charged cost is multiplied by this
  // factor (but limited to half of the rest of the step): statistics of every tensor in a small
  // transformer's layers took 9% of its steps and were charged 4%. Features that run in every step
  // skip every second one until there are enough steps to compare.
  static constexpr double kAssumedCost = 2;
  // Maximum number of windows that pass before features may run more often again. The number
  // doubles each time that a rise had to be reverted.
  static constexpr std::int64_t kMostPatience = 64;

 private:
  // Decider. Decides by the cost of reads, not by their values.
  bool looks_at_rows() const override { return false; }
  bool decides(std::int64_t iteration) const override;
  // Returns 1 + the level that this rank requires; 0 if it stays the same; kOff.
  std::int64_t decide(const EndedIteration& ended) override;
  // Uses the highest value over the ranks. During the first steps any level ends the full
  // recording.
  void follow(std::int64_t iteration, std::span<const std::int64_t> wanted) override;

  static constexpr std::int64_t kOff = std::int64_t{1} << 32;  // above every level

  // Returns true if the section's first steps are over on this rank, by number or by cost.
  bool full_recording_is_over() const;
  void end_full_recording(std::int64_t level);

  struct Measured {
    std::int64_t steps = 0;
    double seconds = 0;     // duration of these steps
    double charged = 0;     // charged part of the duration
    std::int64_t runs = 0;  // steps in which features were on
  };

  // Returns the measured cost, including the time that is charged to no section.
  double cost() const;

  // Returns the number of steps in a window: two periods of the due iterations, or kFewestSteps if
  // that is more.
  std::int64_t window() const;
  // Returns the lowest level from `lowest` on at which the measured cost, scaled to that level's
  // frequency, takes at most this share of the step time.
  std::int64_t level_within(double share, std::int64_t lowest) const;
  void begin_window();
  void change_to(std::int64_t level);

  const config::Section& section_;
  const config::Budget& options_;
  const Announce announce_;
  const Switch switch_;
  const std::int64_t longest_freq_;
  Thinning thinning_;

  // These are the same on all ranks, so that they decide in the same iterations: after every step
  // of the first kFewestSteps, every kFewestSteps-th step of those recorded in full, then after 2,
  // 4, 8, ... steps of a window and at its end.
  bool is_off_ = false;
  bool is_full_;
  std::int64_t full_steps_ = 0;  // recorded in full so far
  std::int64_t level_ = 0;
  std::int64_t steps_ = 0;  // in the window so far
  std::int64_t next_decision_ = kFewestRuns;
  std::int64_t windows_ = 0;   // ended since the last change
  std::int64_t patience_ = 1;  // windows to wait before a rise
  bool has_risen_ = false;     // the last change was a rise
  bool at_end_ = false;        // the last decision was at the end of a window
  // so the running step belongs neither to the old level nor to the new one
  bool changed_in_step_ = false;

  // The times of this rank; over more than one window if there were too few runs.
  Measured measured_;
  Measured decided_from_;
  double decided_share_ = 0;
  bool share_is_estimated_ = false;  // there were no steps without features to compare with
  bool only_compares_ = false;       // level is not 0 only to get steps without features
  StepDurations durations_;
  double unmeasured_ = 0;         // charged in steps of unknown duration
  double overspent_ = 0;          // seconds beyond the budget since the full recording ended
  std::atomic<double> spent_{0};  // in the running step
  std::atomic<bool> ran_{false};  // in the running step
  std::atomic<std::int64_t> reads_{0};
};

// Measures a scope for a budget; nullptr disables the measurement.
class CostTimer {
 public:
  explicit CostTimer(SectionBudget* budget)
      : budget_(budget), begin_(budget == nullptr ? 0 : seconds_now()) {}
  ~CostTimer() {
    if (budget_ != nullptr) budget_->charge(seconds_now() - begin_);
  }
  CostTimer(const CostTimer&) = delete;
  CostTimer& operator=(const CostTimer&) = delete;

 private:
  SectionBudget* budget_;
  double begin_;
};

// Measures a scope for several budgets. Each is charged in full, although the saving of a single
// section may be smaller.
class SharedCost {
 public:
  // If `on` is false (no budgets), the clock is not read.
  explicit SharedCost(bool on) : begin_(on ? seconds_now() : 0) {}
  ~SharedCost();
  SharedCost(const SharedCost&) = delete;
  SharedCost& operator=(const SharedCost&) = delete;

  // Ignores nullptr.
  void add(SectionBudget* budget);
  // Counts a tensor read for each of them.
  void count_reads();

 private:
  double begin_;
  std::vector<SectionBudget*> budgets_;  // each budget once
};

}  // namespace telens
