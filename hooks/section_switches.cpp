#include "hooks/section_switches.h"

#include <algorithm>
#include <map>
#include <utility>

#include "hooks/config/look_back.h"

namespace telens {
namespace {

// A read on another thread may have been counted in one number and not yet in the other.
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
