#include "inspector_cli/report/report_page.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "analysis/events.h"
#include "analysis/findings.h"
#include "analysis/rules.h"
#include "analysis/run_state.h"
#include "analysis/severity.h"
#include "analysis/tensor_summary.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "inspector_cli/report/analysis_display.h"
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
          : fmt::format("No problems found ({} of {} rules checked).", diagnosis.checked,
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

Json skipped_section(const diagnosis::Diagnosis& diagnosis) {
  Json rows = Json::array();
  for (const auto& [rule, missing] : diagnosis.skipped) {
    rows.push_back(
        {json_text(rule->title), fmt::format("{}", fmt::join(missing, ", ")), rule->recorded_by});
  }
  for (const diagnosis::Rule* rule : diagnosis.not_compared) {
    rows.push_back({json_text(rule->title), "ranks to compare",
                    json_text(fmt::format("not compared: {}", diagnosis.why_not_compared))});
  }
  for (const auto& [rule, statistics, under] : diagnosis.inapplicable) {
    rows.push_back({json_text(rule->title), fmt::format("{}", fmt::join(statistics, ", ")),
                    json_text(fmt::format("no meaning under {}", under))});
  }
  Json skipped = section("Skipped rules", "after");
  skipped["table"] = {{"columns", {"rule", "needs", "recorded by"}}, {"rows", std::move(rows)}};
  return skipped;
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
  if (!diagnosis.skipped.empty() || !diagnosis.inapplicable.empty() ||
      !diagnosis.not_compared.empty()) {
    sections.push_back(skipped_section(diagnosis));
  }
  Json config = section("Configuration", "after");
  config["text"] = json_text(run.config_text());
  sections.push_back(std::move(config));
  sections.push_back(environment_section(run));
  return sections;
}

namespace {

using analysis::catalogue_rows;
using analysis::is_bad;
using analysis::WarmUp;

// The ranks of a run and the bins that they fall into.
class RankBins {
 public:
  RankBins(const record::RunReader& run, std::size_t most) {
    std::set<int> ranks;
    for (const auto& segment : run.segments()) ranks.insert(segment.rank);
    ranks_.assign(ranks.begin(), ranks.end());
    bins_ = std::min(most, ranks_.size());
  }

  std::size_t bins() const { return bins_; }
  const std::vector<int>& ranks() const { return ranks_; }
  std::size_t get_bin(int rank) const {
    const auto place = std::ranges::lower_bound(ranks_, rank) - ranks_.begin();
    return static_cast<std::size_t>(place) * bins_ / ranks_.size();
  }

 private:
  std::vector<int> ranks_;
  std::size_t bins_ = 0;
};

using Cells = std::map<std::pair<std::int32_t, std::int32_t>, std::vector<Bin>>;

// Fills the cells, which already exist for the chart's statistics and layers.
void fill(Cells& cells, const record::RunReader& run, const Chart& chart, const RankBins& bins) {
  record::RecordQuery query;
  query.first_iteration = chart.first_iteration;
  query.last_iteration = chart.last_iteration;
  query.statistics.emplace();
  for (const Panel& panel : chart.panels) query.statistics->push_back(panel.id);
  const WarmUp warm_up(run);
  const std::vector<StatisticId> statistics = catalogue_rows(run);
  run.read(query, [&](int rank, std::span<const record::Record> records) {
    const std::size_t bin = bins.get_bin(rank);
    for (const record::Record& each : records) {
      if (each.scope != record::kNoName || each.statistic == record::kNoName) continue;
      const auto found = cells.find({each.statistic, each.layer});
      if (found == cells.end()) continue;
      const bool bad = is_bad(statistics[each.statistic], each.value);
      found->second.resize(bins.bins());
      found->second[bin].add(each.value, !bad && warm_up.covers(each.layer, each.iteration));
    }
  });
}

}  // namespace

RankMaps make_rank_maps(const record::RunReader& run, const Chart& chart, std::size_t most_bins) {
  RankMaps result;
  const RankBins bins(run, most_bins);
  if (bins.ranks().size() < 2 || chart.panels.empty()) return result;
  Cells cells;
  for (const Panel& panel : chart.panels) {
    for (const std::int32_t layer : panel.layer_ids) cells[{panel.id, layer}];
  }
  fill(cells, run, chart, bins);
  for (const Panel& panel : chart.panels) {
    RankMap map{.statistic = panel.statistic, .layers = {}};
    for (std::size_t i = 0; i < panel.layers.size(); ++i) {
      auto& found = cells[{panel.id, panel.layer_ids[i]}];
      if (!found.empty()) map.layers.push_back({panel.layers[i].label, std::move(found)});
    }
    if (!map.layers.empty()) result.maps.push_back(std::move(map));
  }
  for (const int rank : bins.ranks()) {
    if (bins.get_bin(rank) == result.ranks.size()) result.ranks.push_back(rank);
  }
  result.last_rank = bins.ranks().back();
  return result;
}

namespace {

using analysis::get_state;
using analysis::RunState;

// Limits that keep a page below 5 MB. A cell takes 12 to 15 bytes: 2 MB for heat maps, 1 MB for
// their tensors, 0.5 MB for ranks and 0.5 MB for histograms.
constexpr std::size_t kPanels = 5;
constexpr std::size_t kMostLayers = 300;
constexpr std::size_t kMapCells = 120'000;
constexpr std::size_t kTensorCells = 60'000;
constexpr std::size_t kRankCells = 30'000;
constexpr std::size_t kMostBins = 240;
constexpr std::size_t kFewestBins = 60;
constexpr HistogramLimits kHistograms{.bins = kMostBins, .tensors = 4, .rows = 48};

std::size_t bins_within(std::size_t cells, std::size_t layers) {
  const std::size_t rows = kPanels * std::clamp<std::size_t>(layers, 1, kMostLayers);
  return std::min(kMostBins, cells / rows);
}

Chart make_chart(const record::RunReader& run, std::size_t layers) {
  const ChartLimits limits{.bins = std::max(kFewestBins, bins_within(kMapCells, layers)),
                           .lines = 6,
                           .panels = kPanels,
                           .layers = kMostLayers,
                           .tensor_bins = kTensorCells / kPanels};
  return run.record_count() == 0 ? make_scalar_chart(run, limits) : make_chart(run, {}, limits);
}

std::optional<HistogramChart> make_histogram_chart(const record::RunReader& run,
                                                   const Chart& chart) {
  record::RecordQuery query;
  query.first_iteration = chart.first_iteration;
  query.last_iteration = chart.last_iteration;
  try {
    return make_histogram_chart(run, query, kHistograms, &chart);
  } catch (const UsageError&) {
    return std::nullopt;  // a run without ValueHistogram
  }
}

std::string_view get_gravity(const RunState& state) {
  if (state.condition == analysis::Condition::failed) return "grave";
  if (state.condition == analysis::Condition::warning) return "notable";
  return state.condition == analysis::Condition::live ? "fine" : "plain";
}

std::string describe_verdict(const diagnosis::Diagnosis& found) {
  const std::size_t problems = found.findings.size();
  if (problems > 0) return fmt::format("{} problem{} found", problems, problems == 1 ? "" : "s");
  const bool is_empty = found.first_iteration > found.last_iteration;
  return is_empty ? "nothing to diagnose" : "no problems found";
}

}  // namespace

Report make_report(const record::RunReader& run, const std::string& name) {
  const diagnosis::Facts facts(run, diagnosis::statistics_of_rules());
  const diagnosis::Diagnosis found = diagnosis::diagnose(facts);
  const std::size_t layers = run.names(record::Dictionary::layer).size();
  const Chart chart = make_chart(run, layers);
  const auto histograms = make_histogram_chart(run, chart);
  const RankMaps ranks =
      make_rank_maps(run, chart, std::max<std::size_t>(2, bins_within(kRankCells, layers)));
  Json data = report_data(chart, ranks, histograms ? &*histograms : nullptr);
  const RunState state = get_state(run);
  data["state"] = {{"text", json_text(printable(state.text))}, {"gravity", get_gravity(state)}};
  data["sections"] = report_sections(run, facts, found, name);
  std::string verdict = describe_verdict(found);
  data["title"] = json_text(fmt::format("{}, {}", chart.title(), verdict));
  return {.data = json_for_html(data), .verdict = std::move(verdict)};
}

}  // namespace telens::cli
