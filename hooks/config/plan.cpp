#include "hooks/config/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "hooks/config/suggestions.h"

namespace telens::config {

// ---- the table

namespace {

// A mistake that hundreds of layers share is reported for the first few.
constexpr std::size_t kMostErrors = 5;

std::vector<std::string> each_once(std::span<const std::string> names) {
  std::vector<std::string> unique;
  std::set<std::string_view> seen;
  for (const std::string& name : names) {
    if (seen.insert(name).second) unique.push_back(name);
  }
  return unique;
}

std::vector<PlanRow> get_rows(const std::string& layer,
                              const std::vector<const FeatureEntry*>& entries) {
  std::vector<PlanRow> rows;
  for (const FeatureEntry* entry : entries) {
    if (entry->description->opaque) rows.push_back({layer, entry, nullptr});
    for (const Selection& selection : entry->selections) rows.push_back({layer, entry, &selection});
  }
  // In execution order. Tensors with free names follow the known ones.
  std::ranges::stable_sort(rows, {}, [](const PlanRow& row) {
    const auto gemm = gemm_from_name(row.gemm());
    const auto tensor = tensor_from_name(row.tensor());
    return std::tuple(gemm ? static_cast<int>(*gemm) : -1,
                      tensor ? static_cast<std::size_t>(*tensor) : kAllTensors.size(),
                      row.tensor());
  });
  return rows;
}

std::vector<std::string> idle_selectors(const Config& config,
                                        std::span<const std::string> layer_names) {
  ErrorList findings;
  for (const Section& section : config.sections()) {
    const ErrorList::Context context(findings, fmt::format("section '{}'", section.name));
    section.layers.find_idle(layer_names, findings);
    if (section.features.empty()) findings.add(section.location, "no feature is enabled");
  }
  return findings.lines();
}

[[noreturn]] void raise_errors(const std::vector<std::string>& errors) {
  std::string text;
  for (std::size_t i = 0; i < std::min(errors.size(), kMostErrors); ++i) {
    text += (i > 0 ? "\n" : "") + errors[i];
  }
  if (errors.size() > kMostErrors) {
    text += fmt::format("\n... and the same for {} more layers", errors.size() - kMostErrors);
  }
  throw ConfigError(text);
}

std::string describe(const Budget& budget) {
  return fmt::format(
      ", at most {:.3g}% of the time{}", 100 * budget.share,
      budget.full_steps > 0 ? fmt::format(" after {} steps", budget.full_steps) : "");
}

}  // namespace

bool PlanRow::idle() const { return selection && is_idle(*selection); }

bool PlanRow::due(std::int64_t iteration) const {
  return selection && !idle() && selection->schedule.due(iteration);
}

std::string PlanRow::gemm() const {
  return selection && selection->gemm ? std::string(get_name(*selection->gemm)) : "";
}

std::string PlanRow::tensor() const {
  return selection ? selection->tensor.value_or("") : std::string();
}

std::string PlanRow::when() const {
  if (!selection) return "decided at run time";
  if (idle()) return fmt::format("never: {} has no {}", gemm(), tensor());
  const SectionKeys& keys = *entry->keys;
  return fmt::format(
      "{}{}{}{}", keys.started_by ? fmt::format("once '{}' fires: ", keys.started_by->section) : "",
      describe(selection->schedule),
      keys.kept_by ? fmt::format(", written once '{}' fires", keys.kept_by->section) : "",
      keys.budget ? describe(*keys.budget) : "");
}

std::size_t Plan::touched_layers() const {
  std::set<std::string_view> touched;
  for (const PlanRow& row : rows) touched.insert(row.layer);
  return touched.size();
}

Plan make_plan(const Config& config, std::span<const std::string> layer_names) {
  Plan plan{config, each_once(layer_names), {}, {}};
  std::vector<std::string> errors;
  for (const std::string& layer : plan.layers) {
    try {
      const std::vector<PlanRow> rows = get_rows(layer, plan.config.entries_for(layer));
      plan.rows.insert(plan.rows.end(), rows.begin(), rows.end());
    } catch (const ConfigError& error) {
      errors.emplace_back(error.what());
    }
  }
  if (!errors.empty()) raise_errors(errors);
  plan.warnings = plan.config.warnings();
  for (std::string& each : idle_selectors(plan.config, plan.layers)) {
    plan.warnings.push_back(std::move(each));
  }
  return plan;
}

// ---- the number of records

namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// A number of iterations that no run reaches (core/hook_points.h: 40 bits).
constexpr std::int64_t kNoIteration = std::int64_t{1} << 40;

// The number of iterations after a schedule change in which the busiest one is searched.
constexpr std::int64_t kLongestPeriod = 10'000;

// With more candidates, only the changes themselves and each schedule's first iteration are
// searched.
constexpr std::size_t kMostSearched = 100'000;

// Changes times schedules up to which a load is estimated: about a second.
constexpr std::size_t kMostCompared = 10'000'000;

// Frequencies of a record that are used for the average; others are ignored.
constexpr std::size_t kMostFrequencies = 12;

// Numbers of records by schedules; a record is written if one of its schedules is due.
using Schedules = std::set<const Schedule*>;
using Records = std::map<Schedules, std::int64_t>;

// The records of a layer. Features that request the same statistic of a tensor share its record.
Records records_of_layer(std::span<const PlanRow> rows) {
  std::map<std::pair<std::string, std::string>, Schedules> series;  // by tensor and statistic
  for (const PlanRow& row : rows) {
    const FeatureDescription& description = *row.entry->description;
    if (!row.selection || row.idle() || !description.recorded) continue;
    if (row.entry->keys->waits()) continue;  // unknown here when it starts
    for (std::string& name : description.recorded(*row.selection)) {
      // The two LogTensorStats measure different tensors even if these have the same name.
      const std::string tensor = description.feature_namespace == kBaseNamespace
                                     ? fmt::format("{} {}", kBaseNamespace, row.tensor())
                                     : row.tensor();
      series[{tensor, std::move(name)}].insert(&row.selection->schedule);
    }
  }
  Records records;
  for (const auto& [names, schedules] : series) ++records[schedules];
  return records;
}

// Layers that are selected by the same entries have the same records, which are computed once.
Records read_records(const Plan& plan) {
  std::map<std::vector<const void*>, Records> known;
  Records all;
  for (auto begin = plan.rows.begin(); begin != plan.rows.end();) {
    const auto end = std::find_if(begin, plan.rows.end(),
                                  [&](const PlanRow& row) { return row.layer != begin->layer; });
    std::vector<const void*> key;
    for (auto row = begin; row != end; ++row) {
      key.push_back(row->selection ? static_cast<const void*>(row->selection) : row->entry);
    }
    const auto [found, is_new] = known.try_emplace(std::move(key));
    if (is_new) found->second = records_of_layer({begin, end});
    for (const auto& [schedules, count] : found->second) all[schedules] += count;
    begin = end;
  }
  return all;
}

bool any_due(const Schedules& schedules, std::int64_t iteration) {
  return std::ranges::any_of(schedules,
                             [&](const Schedule* schedule) { return schedule->due(iteration); });
}

std::int64_t records_at(const Records& records, std::int64_t iteration) {
  std::int64_t total = 0;
  for (const auto& [schedules, count] : records) {
    if (any_due(schedules, iteration)) total += count;
  }
  return total;
}

std::int64_t get_period(const Schedules& schedules) {
  std::int64_t period = 1;
  for (const Schedule* schedule : schedules) {
    if (schedule->freq() >= kLongestPeriod) return kLongestPeriod;
    period = std::min(kLongestPeriod, std::lcm(period, schedule->freq()));
  }
  return period;
}

// The different frequencies of the schedules that are active in an iteration. A multiple of another
// frequency adds nothing and is omitted.
std::vector<std::int64_t> frequencies_at(const Schedules& schedules, std::int64_t iteration) {
  std::set<std::int64_t> all;
  for (const Schedule* schedule : schedules) {
    if (schedule->selects(iteration)) all.insert(schedule->freq());
  }
  std::vector<std::int64_t> frequencies;
  for (const std::int64_t each : all) {
    const bool is_new = std::ranges::none_of(
        frequencies, [&](std::int64_t smaller) { return each % smaller == 0; });
    if (is_new && frequencies.size() < kMostFrequencies) frequencies.push_back(each);
  }
  return frequencies;
}

std::int64_t least_common_multiple(std::int64_t a, std::int64_t b) {
  const std::int64_t factor = a / std::gcd(a, b);
  return factor > kNever / b ? kNever : factor * b;
}

// The number of multiples of a frequency among the iterations before `end`.
double multiples_before(std::int64_t end, std::int64_t frequency) {
  return end <= 0 ? 0 : static_cast<double>((end - 1) / frequency + 1);
}

// The share of the `length` iterations from `begin`, between two changes, in which a schedule is
// due. By inclusion and exclusion: a common multiple of two frequencies counts once.
double density(const Schedules& schedules, std::int64_t begin, std::int64_t length) {
  const std::vector<std::int64_t> frequencies = frequencies_at(schedules, begin);
  double sum = 0;
  for (std::uint32_t some = 1; some < 1U << frequencies.size(); ++some) {
    std::int64_t common = 1;
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      if (some >> i & 1U) common = least_common_multiple(common, frequencies[i]);
    }
    const double share =
        length == kNever
            ? 1 / static_cast<double>(common)
            : (multiples_before(begin + length, common) - multiples_before(begin, common)) /
                  static_cast<double>(length);
    sum += std::popcount(some) % 2 == 1 ? share : -share;
  }
  return sum;
}

// The iterations at which ranges begin and end. Between two of them a schedule is periodic.
struct Changes {
  std::set<std::int64_t> iterations{0};
  bool endless = false;
};

Changes find_changes(const Schedules& schedules) {
  Changes changes;
  for (const Schedule* schedule : schedules) {
    for (const StepRange& range : schedule->ranges()) {
      const std::int64_t first = std::max(range.first, std::int64_t{0});
      if (first >= kNoIteration || (range.last && *range.last < first)) continue;
      const bool ends = range.last && *range.last < kNoIteration - 1;
      changes.iterations.insert(first);
      if (ends) changes.iterations.insert(*range.last + 1);
      changes.endless = changes.endless || !ends;
    }
  }
  return changes;
}

// Candidates for the busiest iteration: a period after each change, and each schedule's first
// iteration.
std::set<std::int64_t> busy_iterations(const Schedules& schedules, const Changes& changes) {
  std::set<std::int64_t> iterations;
  const std::int64_t period = get_period(schedules);
  for (auto change = changes.iterations.begin(); change != changes.iterations.end(); ++change) {
    const auto next = std::next(change);
    const std::int64_t length = next == changes.iterations.end() ? kNever : *next - *change;
    const std::int64_t searched = iterations.size() < kMostSearched ? std::min(period, length) : 1;
    for (std::int64_t i = 0; i < searched; ++i) iterations.insert(*change + i);
    for (const Schedule* schedule : schedules) {
      const auto due = schedule->next_due_after(*change - 1);
      if (due && *due < kNoIteration) iterations.insert(*due);
    }
  }
  return iterations;
}

std::vector<std::string> not_counted(const Plan& plan) {
  std::set<std::string> names;
  for (const PlanRow& row : plan.rows) {
    if (!row.entry->description->recorded) names.insert(qualified_name(*row.entry->description));
  }
  return {names.begin(), names.end()};
}

std::vector<std::string> waiting_sections(const Plan& plan) {
  std::vector<std::string> sections;
  std::set<std::string_view> known;
  for (const PlanRow& row : plan.rows) {
    if (!row.entry->keys->waits() || row.idle()) continue;
    if (row.entry->description->recorded && row.selection &&
        row.entry->description->recorded(*row.selection).empty()) {
      continue;
    }
    if (known.insert(row.entry->section).second) sections.push_back(row.entry->section);
  }
  return sections;
}

std::string size_text(double records) {
  const double bytes = records * kBytesPerRecord;
  constexpr double kKilo = 1000, kMega = 1e6;
  if (bytes >= kMega) return fmt::format("{:.1f} MB", bytes / kMega);
  return bytes >= kKilo ? fmt::format("{:.1f} kB", bytes / kKilo)
                        : fmt::format("{:.0f} bytes", bytes);
}

}  // namespace

RecordLoad estimate_load(const Plan& plan) {
  const Records records = read_records(plan);
  Schedules schedules;
  for (const auto& [each, count] : records) schedules.insert(each.begin(), each.end());
  const Changes changes = find_changes(schedules);
  RecordLoad load;
  load.not_counted = not_counted(plan);
  load.waiting = waiting_sections(plan);
  if (changes.iterations.size() * schedules.size() > kMostCompared) {
    load.refusal = fmt::format("{} schedules that change in {} iterations are too many",
                               schedules.size(), changes.iterations.size());
    return load;
  }
  std::optional<std::int64_t> first_due;
  for (const std::int64_t iteration : busy_iterations(schedules, changes)) {
    const std::int64_t now = records_at(records, iteration);
    if (now > 0 && !first_due) first_due = iteration;
    if (now <= load.most) continue;
    load.most = now;
    load.busiest = iteration;
  }
  const std::int64_t end = *changes.iterations.rbegin();
  load.first = changes.endless ? end : first_due.value_or(0);
  if (!changes.endless) load.last = std::max(load.first, end - 1);
  const auto steps = static_cast<double>(load.last ? *load.last - load.first + 1 : 1);
  for (auto from = changes.iterations.begin(); from != changes.iterations.end(); ++from) {
    const bool is_last = std::next(from) == changes.iterations.end();
    if (is_last != changes.endless) continue;  // endless: only the time after the last change
    const std::int64_t length = is_last ? kNever : *std::next(from) - *from;
    for (const auto& [each, count] : records) {
      load.average += static_cast<double>(count) * density(each, *from, length) *
                      (is_last ? 1.0 : static_cast<double>(length) / steps);
    }
  }
  return load;
}

std::int64_t records_in(const Plan& plan, std::int64_t iteration) {
  return records_at(read_records(plan), iteration);
}

std::string RecordLoad::text() const {
  std::string text =
      waiting.empty() ? "nothing is recorded" : "nothing is recorded from the start on";
  if (!refusal.empty()) text = fmt::format("the load is not estimated: {}", refusal);
  if (most > 0) {
    std::string when;
    if (last) when = fmt::format(" from {} to {}", first, *last);
    if (!last && first > 0) when = fmt::format(" from {} on", first);
    text = fmt::format(
        "{:.4g} records ({}) a step on average{}, at most {} ({}) in iteration {}, if every layer "
        "runs quantized",
        average, size_text(average), when, most, size_text(static_cast<double>(most)), busiest);
  }
  if (!not_counted.empty()) {
    text += fmt::format("; not counted: {}", fmt::join(not_counted, ", "));
  }
  return text + about_waiting(waiting);
}

std::string about_waiting(const std::vector<std::string>& sections) {
  if (sections.empty()) return "";
  return fmt::format("; {} only once a trigger fires: {}",
                     sections.size() == 1 ? "a section records" : "sections that record",
                     quoted_list(sections));
}

}  // namespace telens::config
