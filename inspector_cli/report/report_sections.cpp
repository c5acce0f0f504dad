// The sections of a report other than its charts.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "analysis/events.h"
#include "analysis/finding_words.h"
#include "analysis/rules.h"
#include "analysis/run_state.h"
#include "analysis/worst_blocks.h"
#include "core/base/text.h"
#include "inspector_cli/report/analysis_display.h"
#include "inspector_cli/report/report_page.h"
#include "inspector_cli/terminal/text.h"

namespace telens::cli {
namespace {

using analysis::get_event_text;
using analysis::list_events;
using analysis::recording_notes;
using analysis::worst_blocks;

using diagnosis::Facts;
using diagnosis::Finding;
using diagnosis::GemmState;

// Limits that keep a page small.
constexpr std::size_t kMostFindings = 20;
constexpr std::size_t kMostConsequences = 10;
constexpr std::size_t kMostGemmRows = 200;
constexpr std::size_t kMostBlocks = 10;
constexpr std::size_t kMostEvents = 200;

Json section(std::string_view title, std::string_view place) {
  return {{"title", title}, {"place", place}};
}

std::string describe_evidence(const Finding& finding) {
  std::string text;
  for (const diagnosis::Evidence& each : finding.evidence) {
    const std::string what = each.what.empty() ? "" : fmt::format(" ({})", each.what);
    text += fmt::format("{}{} {}{} in iteration {}", text.empty() ? "" : "; ", each.statistic,
                        number_text(each.value), what, each.iteration);
  }
  return text;
}

std::string describe_consequences(const diagnosis::Ranked& ranked, const Facts& facts) {
  std::string text;
  const std::size_t shown = std::min(kMostConsequences, ranked.consequences.size());
  for (std::size_t i = 0; i < shown; ++i) {
    const Finding& each = ranked.consequences[i];
    text += fmt::format("{}{} of {} from {}", i == 0 ? "" : "; ", each.cause,
                        make_label(each.place, facts), each.first);
  }
  const std::size_t more = ranked.consequences.size() - shown;
  return more == 0 ? text : text + fmt::format("; and {} more", more);
}

Json finding_json(const diagnosis::Ranked& ranked, std::size_t number, const Facts& facts,
                  const std::string& run) {
  const Finding& finding = ranked.finding;
  const diagnosis::Rule& rule = diagnosis::find_rule(finding.cause);
  Json rows = Json::array();
  const auto add = [&rows](std::string_view name, const std::string& text) {
    if (!text.empty()) rows.push_back({name, json_text(text)});
  };
  add("observed", finding.summary);
  add("evidence", describe_evidence(finding));
  add("confidence", fmt::format("{:.0f} %", 100 * finding.confidence));
  add("also possible", std::string(rule.alternatives));
  add("next", next_step(finding, facts, run));
  add("follows", describe_consequences(ranked, facts));
  return {
      {"head", json_text(fmt::format("{}. {} ({}): {}, {}", number, rule.title, finding.cause,
                                     make_label(finding.place, facts), get_iterations(finding)))},
      {"rows", std::move(rows)}};
}

// Returns the notes about interrupted recordings and missing ranks.
Json recording_section(const std::vector<std::string>& notes) {
  Json rows = Json::array();
  for (const std::string& note : notes) rows.push_back(Json::array({json_text(note)}));
  Json recording = section("Recording", "before");
  recording["table"] = {{"columns", Json::array({"note"})}, {"rows", std::move(rows)}};
  return recording;
}

Json events_section(const record::RunReader& run) {
  Json rows = Json::array();
  std::size_t hidden = 0;
  for (const auto& [kind, events] : list_events(run, /*all=*/false)) {
    for (const auto& [event, ranks] : events) {
      if (rows.size() == kMostEvents) {
        ++hidden;
        continue;
      }
      rows.push_back({json_text(kind), std::to_string(event.iteration), describe_ranks(ranks),
                      json_text(get_event_text(event, run))});
    }
  }
  // A run that ended in its first step has only events.
  Json events = section("Events", run.record_count() == 0 ? "before" : "after");
  if (hidden > 0) events["note"] = fmt::format("And {} more: telens info --events.", hidden);
  events["table"] = {{"columns", {"kind", "iteration", "ranks", "event"}},
                     {"rows", std::move(rows)}};
  return events;
}

Json findings_section(const diagnosis::Diagnosis& diagnosis, const Facts& facts,
                      const std::string& run) {
  Json findings = section("Findings", "before");
  findings["note"] =
      !diagnosis.findings.empty()
          ? fmt::format("{} in all, the most probable origin first.", diagnosis.findings.size())
      : diagnosis.first_iteration > diagnosis.last_iteration
          ? "No problems found: nothing to diagnose was recorded."
          : fmt::format("No problems found ({} of {} rules checked).", diagnosis.asked,
                        diagnosis.applicable());
  findings["findings"] = Json::array();
  const std::size_t shown = std::min(kMostFindings, diagnosis.findings.size());
  for (std::size_t i = 0; i < shown; ++i) {
    findings["findings"].push_back(finding_json(diagnosis.findings[i], i + 1, facts, run));
  }
  return findings;
}

// Returns the precision by operand and the number of layers with it.
Json gemms_section(const Facts& facts) {
  using Key = std::tuple<std::string, std::string, std::string, std::string>;
  std::map<Key, std::set<std::int32_t>> layers;
  std::map<Key, std::int64_t> first;
  for (const GemmState& state : facts.gemm_states()) {
    for (const TensorName tensor : kAllTensors) {
      const std::string name(telens::get_name(tensor));
      const std::string ran = state.detail(name + " ran");
      if (ran.empty() || !state.place.gemm) continue;
      const Key key{std::string(telens::get_name(*state.place.gemm)), name, ran,
                    state.detail(name + " cause")};
      layers[key].insert(state.place.layer);
      const auto [at, is_new] = first.try_emplace(key, state.iteration);
      if (!is_new) at->second = std::min(at->second, state.iteration);
    }
  }
  Json rows = Json::array();
  for (const auto& [key, ids] : layers) {
    if (rows.size() == kMostGemmRows) break;
    const auto& [gemm, tensor, ran, cause] = key;
    rows.push_back({gemm, tensor, json_text(ran), json_text(cause), std::to_string(ids.size()),
                    json_text(facts.layer_name(*ids.begin())), std::to_string(first.at(key))});
  }
  Json gemms = section("Precision of GEMMs", "after");
  gemms["table"] = {
      {"columns", {"GEMM", "operand", "ran", "why", "layers", "first layer", "from iteration"}},
      {"rows", std::move(rows)}};
  return gemms;
}

Json unasked_section(const diagnosis::Diagnosis& diagnosis) {
  Json rows = Json::array();
  for (const auto& [rule, lacks] : diagnosis.unasked) {
    rows.push_back(
        {json_text(rule->title), fmt::format("{}", fmt::join(lacks, ", ")), rule->recorded_by});
  }
  for (const diagnosis::Rule* rule : diagnosis.not_compared.rules) {
    rows.push_back({json_text(rule->title), "ranks to compare",
                    json_text(fmt::format("not compared: {}", diagnosis.not_compared.why))});
  }
  for (const auto& [rule, statistics, under] : diagnosis.meaningless) {
    rows.push_back({json_text(rule->title), fmt::format("{}", fmt::join(statistics, ", ")),
                    json_text(fmt::format("no meaning under {}", under))});
  }
  Json unasked = section("Skipped rules", "after");
  unasked["table"] = {{"columns", {"rule", "needs", "recorded by"}}, {"rows", std::move(rows)}};
  return unasked;
}

Json blocks_section(const Table& blocks) {
  Json rows = Json::array();
  for (const auto& cells : blocks.rows()) {
    Json row = Json::array();
    for (const Cell& cell : cells) row.push_back(short_text(cell));
    rows.push_back(std::move(row));
  }
  Json worst = section("Worst blocks", "after");
  worst["note"] =
      fmt::format("The {} worst per statistic; rows and columns count blocks.", kMostBlocks);
  worst["table"] = {{"columns", blocks.columns()}, {"rows", std::move(rows)}};
  return worst;
}

Json environment_section(const record::RunReader& run) {
  Json rows = Json::array();
  for (const auto& [name, value] : run.environment()) {
    rows.push_back({json_text(name), json_text(value)});
  }
  Json environment = section("Environment", "after");
  environment["table"] = {{"columns", {"", ""}}, {"rows", std::move(rows)}};
  return environment;
}

}  // namespace

Json report_sections(const record::RunReader& run, const Facts& facts,
                     const diagnosis::Diagnosis& diagnosis, const std::string& name) {
  Json sections = Json::array();
  if (const auto notes = recording_notes(run); !notes.empty()) {
    sections.push_back(recording_section(notes));
  }
  sections.push_back(findings_section(diagnosis, facts, name));
  if (Json events = events_section(run); !events["table"]["rows"].empty()) {
    sections.push_back(std::move(events));
  }
  const Table blocks = block_table(worst_blocks(run, {}), run, kMostBlocks);
  if (blocks.size() > 0) sections.push_back(blocks_section(blocks));
  if (!facts.gemm_states().empty()) sections.push_back(gemms_section(facts));
  if (!diagnosis.unasked.empty() || !diagnosis.meaningless.empty() ||
      !diagnosis.not_compared.rules.empty()) {
    sections.push_back(unasked_section(diagnosis));
  }
  Json config = section("Configuration", "after");
  config["text"] = json_text(run.config_text());
  sections.push_back(std::move(config));
  sections.push_back(environment_section(run));
  return sections;
}

}  // namespace telens::cli
