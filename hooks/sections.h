// The sections of a session: their switches, look-back rows and budgets, and the clock with which a
// session measures its own cost.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "hooks/config/config.h"
#include "hooks/decisions.h"
#include "hooks/sink.h"

namespace telens {

// Returns the seconds since an arbitrary epoch; monotonic.
TELENS_EXPORT double seconds_now();

// For tests: replaces the clock; nullptr restores the real one.
using SecondsClock = double (*)();
TELENS_EXPORT void set_clock(SecondsClock clock);

// Makes a section's features run in every factor-th due iteration only, as its budget requires.
// Thread-safe.
class Thinning {
 public:
  std::int64_t factor() const { return factor_.load(std::memory_order_relaxed); }
  void set(std::int64_t factor) { factor_.store(factor, std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> factor_{1};
};

// Buffers the rows of the last iterations until another feature requests them.
class LookBackBuffer {
 public:
  LookBackBuffer(std::int64_t iterations, std::size_t most_rows)
      : iterations_(iterations), most_rows_(most_rows) {}

  // Adds an iteration's rows. Drops iterations older than the window, then the oldest rows beyond
  // `most_rows`; if a single iteration has too many rows, its first ones are dropped.
  void add(std::int64_t iteration, std::vector<Row> rows);

  // Returns all rows, oldest first, and clears the buffer.
  std::vector<Row> take();

  // Returns true if rows within the window were dropped since the last take().
  bool overflowed() const { return lost_.has_value(); }

 private:
  struct Batch {
    std::int64_t iteration;
    std::vector<Row> rows;
  };

  std::int64_t iterations_;
  std::size_t most_rows_;
  std::deque<Batch> batches_;
  std::size_t rows_ = 0;
  std::optional<std::int64_t> lost_;  // newest iteration with dropped rows
};

// Estimates the extra duration of steps with features, beyond the charged cost: a watched layer
// runs unfused, and the features' reads evict other data from the caches.
class StepDurations {
 public:
  // Adds a step. `ran`: features were on. `seconds` includes the charged `cost`.
  void add(bool ran, double seconds, double cost);

  // Returns true if there are enough steps with and without features to compare.
  bool known() const { return on_.size() >= kFewestOn && off_.size() >= kFewestOff; }
  // Returns the extra seconds of a step with features, beyond the charged cost; 0 if the difference
  // is within the normal variation of steps.
  double hidden_cost() const;

  static constexpr std::size_t kFewestOn = 2;
  static constexpr std::size_t kFewestOff = 4;
  // Step durations drift, most at the beginning of a training. A step without features is
  // comparable for as many steps as came before it, plus this number. If features run in every
  // step, it then expires, and comparisons require skipped steps again.
  static constexpr std::int64_t kFreshFor = 64;

 private:
  void forget_what_is_old();

  // Number of newest steps kept per kind.
  static constexpr std::size_t kKept = 32;
  static void keep(std::vector<double>& kept, std::size_t& next, double seconds);

  std::vector<double> on_;  // excluding the charged cost
  std::vector<double> off_;
  std::size_t next_on_ = 0;
  std::size_t next_off_ = 0;
  std::int64_t steps_ = 0;
  std::int64_t newest_off_ = 0;  // number of the newest step without features
};

// Implements a section's `budget: 3%`. The first steps are recorded in full (config::Budget). After
// them, features run in every 2^level-th due iteration, so that their cost stays within this share
// of the step time.
class SectionBudget final : public Decider {
 public:
  // Receives a sentence about every change.
  using Announce = std::function<void(const std::string& text)>;
  // `off`: this rank measures and never thins. If one rank is off, all ranks are.
  enum class Switch : std::uint8_t { on, off };

  // The section must have a budget.
  SectionBudget(const config::Section& section, Announce announce, Switch on_or_off = Switch::on);

  // Adds seconds that the section's features took. Any thread.
  void charge(double seconds) { spent_.fetch_add(seconds, std::memory_order_relaxed); }

  // Marks the iteration as one with features on. Any thread.
  void note_run() { ran_.store(true, std::memory_order_relaxed); }

  // Counts a tensor read for the section. Any thread.
  void count_read() { reads_.fetch_add(1, std::memory_order_relaxed); }
  // Returns the reads since the last call.
  std::int64_t take_reads() { return reads_.exchange(0, std::memory_order_relaxed); }

  // Ends an iteration. `seconds`: its duration, cost and waiting included; nullopt if unknown.
  // `waited`: seconds in which ranks waited for each other.
  void end_step(std::optional<double> seconds, double waited = 0);

  // Features run in every 2^level-th due iteration.
  std::int64_t level() const { return level_; }
  // Returns true during the first steps, which are recorded regardless of their cost.
  bool records_in_full() const { return is_full_; }
  const Thinning& thinning() const { return thinning_; }

  // Minimum number of iterations with features on before the first decision. A single one does not
  // show how often features with their own schedule run. With `full_steps: 0`, the first two steps
  // may therefore exceed the budget; later steps compensate.
  static constexpr std::int64_t kFewestRuns = 2;
  // Steps of the shortest window. Features do not run more often before its end. If one step of
  // eight takes twice as long, the share changes by a ninth, far less than the factor of two
  // between levels.
  static constexpr std::int64_t kFewestSteps = 8;
  // Share of the budget that features receive while an excess is compensated: one level above the
  // sufficient one. An excess is more than the budget and a single run.
  static constexpr double kPartWhileSaving = 0.5;
  // Features run more often again if the expected cost is at most this share of the budget, so that
  // costs that vary by a third do not make the level oscillate.
  static constexpr double kRoomToRise = 0.75;
  // Factor for the charged cost until steps with and without features can be compared. The extra
  // cost is limited to half of the rest of the step. Measured: statistics of every tensor in a
  // small transformer took 9% of the step time and were charged 4%. Features that run in every step
  // skip every second one until there are enough steps to compare.
  static constexpr double kAssumedCost = 2;
  // Maximum number of windows before features may run more often again. The number doubles after
  // each rise that was reverted.
  static constexpr std::int64_t kMostPatience = 64;

 private:
  // Decider. Decisions depend on the cost of reads, not on their values.
  bool looks_at_rows() const override { return false; }
  bool decides(std::int64_t iteration) const override;
  // Returns 1 + the level that this rank requires; 0 if it stays the same; kOff.
  std::int64_t decide(const EndedIteration& ended) override;
  // Applies the highest value of all ranks. During the first steps, any level ends the full
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

  // Returns the measured seconds, including extra time that was not charged.
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

  // Equal on all ranks, so that they decide in the same iterations:
  // - after each of the first kFewestSteps steps,
  // - after every kFewestSteps-th step that is recorded in full,
  // - after 2, 4, 8, ... steps of a window and at its end.
  bool is_off_ = false;
  bool is_full_;
  std::int64_t full_steps_ = 0;  // recorded in full so far
  std::int64_t level_ = 0;
  std::int64_t steps_ = 0;  // in the window so far
  std::int64_t next_decision_ = kFewestRuns;
  std::int64_t windows_ = 0;      // ended since the last change
  std::int64_t patience_ = 1;     // windows to wait before a rise
  bool has_risen_ = false;        // the last change was a rise
  bool at_end_ = false;           // the last decision was at the end of a window
  bool changed_in_step_ = false;  // the running step belongs to neither level

  // This rank's measurements. They span several windows if one has too few runs.
  Measured measured_;
  Measured decided_from_;
  double decided_share_ = 0;
  bool share_is_estimated_ = false;  // no steps without features to compare
  bool only_compares_ = false;       // level is above 0 only to get steps without features
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

// Measures a scope for several budgets. Each is charged in full, although disabling a single
// section may save less.
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

// One section in a session.
class SectionState {
 public:
  explicit SectionState(const config::Section& section)
      : section_(&section), left_(section.keys->waits() ? 0 : kForever) {}

  const std::string& name() const { return section_->name; }
  const config::SectionKeys& keys() const { return *section_->keys; }

  // Returns true if the section is on. Any thread.
  bool runs() const { return left_.load(std::memory_order_relaxed) > 0; }

  // Returns true if another section's feature starts and ends it.
  bool is_switched() const { return keys().waits(); }

  // Returns Row::rings of the section's rows; 0 if they are recorded directly.
  std::uint64_t ring() const { return ring_; }

  // Returns nullptr if the section has no budget.
  SectionBudget* budget() const { return budget_.get(); }

 private:
  friend class SectionSwitches;
  static constexpr std::int64_t kForever = std::int64_t{1} << 62;

  const config::Section* section_;
  std::atomic<std::int64_t> left_;  // iterations
  std::uint64_t ring_ = 0;
  std::unique_ptr<SectionBudget> budget_;
  double part_of_reads_ = 0;  // its share of the reads in the last ended iteration
};

// All sections of a session. Sections are switched in step(), in the same step on all ranks.
class TELENS_EXPORT SectionSwitches {
 public:
  // Throws ConfigError if more than kMostRings features keep rows.
  explicit SectionSwitches(const config::Config& config);

  SectionState& state(std::string_view section);

  // Creates the budgets. `announce` receives a sentence about every change. Nothing is measured if
  // no section has a budget.
  using Announce = std::function<void(const std::string& text)>;
  void make_budgets(const Announce& announce,
                    SectionBudget::Switch on_or_off = SectionBudget::Switch::on);
  const std::vector<SectionState*>& with_budget() const { return with_budget_; }
  bool measures() const { return !with_budget_.empty(); }

  // Counts a read of a tensor. Any thread.
  void count_read() { reads_.fetch_add(1, std::memory_order_relaxed); }
  // Ends an iteration. `cost`: seconds that finishing its reads took. `waited`: part of it in which
  // ranks waited for each other.
  void end_step(double cost, double waited = 0);
  // Adds the seconds of passing the rows to sinks, which count toward the next iteration.
  void charge_after_step(double cost);

  // Starts the sections with `started_by: section` for this number of iterations, from the next one
  // on. Returns their names.
  std::vector<std::string> start(std::string_view section, std::int64_t iterations);

  struct Written {
    std::size_t rows = 0;
    bool incomplete = false;  // rows were dropped
  };
  // Writes the look-back rows of sections with `kept_by: section`; `last`: the sections end.
  Written write_kept(std::string_view section, bool last);

  // Moves the rows to be kept out of the rows of an ended iteration.
  void keep(std::int64_t iteration, std::vector<Row>& rows);
  // Returns the rows that write_kept() has requested since the last call.
  std::vector<Row> take_written() { return std::exchange(written_, {}); }

  // Ends the iteration. Returns true if any section began or ended since the last call.
  bool end_iteration();

  static constexpr std::size_t kMostRings = 64;

 private:
  struct Ring {
    std::string section;  // the section that decides when it is written
    LookBackBuffer rows;
  };

  void add_ring(const config::Section& section, std::int64_t iterations,
                std::int64_t most_mebibytes);

  std::deque<SectionState> states_;
  std::vector<Ring> rings_;
  std::vector<SectionState*> with_budget_;
  std::atomic<std::int64_t> reads_{0};     // since the last end_step()
  std::optional<double> last_step_ended_;  // clock time
  std::vector<Row> written_;
  bool changed_ = false;
};

}  // namespace telens
