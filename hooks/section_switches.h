// The sections that run, and the sections whose rows are held back.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hooks/config/config.h"
#include "hooks/look_back_buffer.h"
#include "hooks/section_budget.h"

namespace telens {

// One section in a session.
class SectionState {
 public:
  explicit SectionState(const config::Section& section)
      : section_(&section), left_(section.keys->waits() ? 0 : kForever) {}

  const std::string& name() const { return section_->name; }
  const config::SectionKeys& keys() const { return *section_->keys; }

  // Any thread.
  bool runs() const { return left_.load(std::memory_order_relaxed) > 0; }

  // Returns true if another section's feature begins or ends it.
  bool is_switched() const { return keys().waits(); }

  // Row::rings of the rows that the section requests; 0 if it is recorded.
  std::uint64_t ring() const { return ring_; }

  // nullptr if it has none.
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

// All sections of a session. Its switches are used in step(), in the same step on all ranks.
class TELENS_EXPORT SectionSwitches {
 public:
  // Throws ConfigError if more than kMostRings features keep rows.
  explicit SectionSwitches(const config::Config& config);

  SectionState& state(std::string_view section);

  // Creates the budgets. `announce` receives a sentence about every change. Without a budget
  // nothing is measured.
  using Announce = std::function<void(const std::string& text)>;
  void make_budgets(const Announce& announce,
                    SectionBudget::Switch on_or_off = SectionBudget::Switch::on);
  const std::vector<SectionState*>& with_budget() const { return with_budget_; }
  bool measures() const { return !with_budget_.empty(); }

  // Counts a read of a tensor. Any thread.
  void count_read() { reads_.fetch_add(1, std::memory_order_relaxed); }
  // Ends an iteration: finishing all of its reads has cost `cost` seconds, during which ranks
  // `waited` for each other.
  void end_step(double cost, double waited = 0);
  // Adds the cost of passing the rows on: it counts toward the next iteration.
  void charge_after_step(double cost);

  // Runs the sections with `started_by: section` for this many iterations after the ending one.
  // Returns their names.
  std::vector<std::string> start(std::string_view section, std::int64_t iterations);

  struct Written {
    std::size_t rows = 0;
    bool incomplete = false;  // there were too many rows to keep
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
