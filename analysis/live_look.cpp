#include "analysis/live_look.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "analysis/findings.h"
#include "analysis/rules.h"
#include "core/base/text.h"
#include "record/run_reader.h"

namespace telens::analysis {
namespace {

// Returns the last iterations of a run that contain about this many records, or all if there are
// fewer.
Iterations last_iterations(const record::RunReader& run, std::int64_t last, std::uint64_t most) {
  std::uint64_t records = 0;
  std::int64_t first_recorded = INT64_MAX;
  std::int64_t last_recorded = INT64_MIN;
  for (const record::Segment& segment : run.segments()) {
    if (segment.records == 0) continue;
    records += segment.records;
    first_recorded = std::min(first_recorded, segment.first_iteration);
    last_recorded = std::max(last_recorded, segment.last_iteration);
  }
  if (records <= most) return {.last = last};
  const double part = static_cast<double>(most) / static_cast<double>(records);
  const auto recorded = static_cast<double>(last_recorded - first_recorded + 1);
  return {.first = last_recorded - static_cast<std::int64_t>(part * recorded), .last = last};
}

}  // namespace

LiveLook::Key LiveLook::make_key(const Finding& finding, const Facts& facts) {
  const Place& place = finding.place;
  return {std::string(finding.cause), facts.layer_name(place.layer),
          place.tensor ? static_cast<int>(*place.tensor) : -1,
          place.gemm ? static_cast<int>(*place.gemm) : -1, place.rank};
}

bool LiveLook::counts(const Finding& finding, const Seen& seen) const {
  if (finding.last < seen.since) return false;
  // This process is still writing the run, although a file system without locks does not show it.
  if (find_rule(finding.cause).stage == Stage::ending) return false;
  // A partial read does not begin at the start of the run.
  if (seen.is_part && finding.first <= seen.facts.first_iteration()) return false;
  const std::string& layer = seen.facts.layer_name(finding.place.layer);
  return layer.empty() || options_.selects(layer);
}

// Returns the strongest newly required action, or nullopt. A reported finding is reported again
// only if a consequence requires a stronger action.
std::optional<Action> LiveLook::new_action(const Ranked& ranked, const Seen& seen) {
  const bool was_told = options_.get_action(ranked.finding.cause) != Action::ignore &&
                        known_.contains(make_key(ranked.finding, seen.facts));
  const Action least = was_told ? Action::veto : Action::tell;
  std::optional<Action> strongest;
  const auto add = [&](const Finding& finding) {
    if (finding.first > seen.settled || !counts(finding, seen)) return;
    const Action action = options_.get_action(finding.cause);
    const bool is_new = known_.insert(make_key(finding, seen.facts)).second;
    if (is_new && action >= least) strongest = std::max(strongest.value_or(action), action);
  };
  add(ranked.finding);
  for (const Finding& each : ranked.consequences) add(each);
  return strongest;
}

LiveFinding LiveLook::make_live_finding(const Ranked& ranked, Action action,
                                        const Facts& facts) const {
  const Finding& finding = ranked.finding;
  std::string text =
      fmt::format("{}: {}, {}: {} (sure {:.0f} %)", finding.cause, make_label(finding.place, facts),
                  get_iterations(finding), printable(finding.summary), 100 * finding.confidence);
  if (action > options_.get_action(finding.cause)) {
    const auto asks = std::ranges::find_if(ranked.consequences, [&](const Finding& each) {
      return options_.get_action(each.cause) == action;
    });
    text += fmt::format("; {} of {} from iteration {} on follows from it", asks->cause,
                        make_label(asks->place, facts), asks->first);
  }
  text += fmt::format("; next: {}", next_step(finding, facts, options_.run));
  return {.action = action,
          .cause = std::string(finding.cause),
          .layer = facts.layer_name(finding.place.layer),
          .first = finding.first,
          .last = finding.last,
          .confidence = finding.confidence,
          .text = std::move(text),
          .json = json_line(ranked_json(ranked, facts, options_.run))};
}

bool LiveLook::vetoes(const Ranked& ranked, const Seen& seen) const {
  const auto does = [&](const Finding& finding) {
    return options_.get_action(finding.cause) >= Action::veto && counts(finding, seen);
  };
  return does(ranked.finding) || std::ranges::any_of(ranked.consequences, does);
}

LiveFindings LiveLook::look(const Request& request) {
  const record::RunReader run(options_.path, [](const std::string&) {});
  const Iterations read = last_iterations(run, request.last, options_.most_records);
  const Facts facts(run, statistics_of_rules(), read);
  const Diagnosis diagnosis = diagnose(facts);
  const Seen seen{.facts = facts,
                  .since = request.since,
                  .is_part = read.first != INT64_MIN,
                  .settled = request.at_end ? INT64_MAX : facts.last_iteration() - 1};
  LiveFindings findings;
  for (const Ranked& ranked : diagnosis.findings) {
    findings.vetoes = findings.vetoes || vetoes(ranked, seen);
    const std::optional<Action> action = new_action(ranked, seen);
    if (action) findings.found.push_back(make_live_finding(ranked, *action, facts));
  }
  return findings;
}

}  // namespace telens::analysis
