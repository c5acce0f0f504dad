#include "analysis/findings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "analysis/baseline.h"
#include "analysis/rules.h"
#include "core/base/text.h"

namespace telens::analysis {
namespace {

void replace_all(std::string& text, std::string_view what, const std::string& by) {
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
}

std::string filled_in(std::string_view step, const Finding& finding, const Facts& facts,
                      const std::string& run) {
  std::string text(step);
  replace_all(text, "RUN", shell_word(run));
  replace_all(text, "{layer}", facts.layer_name(finding.place.layer));
  replace_all(text, "{rank}", std::to_string(std::max(0, finding.place.rank)));
  return printable(text);
}

}  // namespace

std::string make_label(const Place& place, const Facts& facts) {
  std::string label = facts.layer_name(place.layer);
  if (label.empty()) label = "the whole run";
  if (place.tensor) label += fmt::format(" {}", telens::get_name(*place.tensor));
  // A wgrad tensor always belongs to the wgrad GEMM.
  const bool is_named_so = place.gemm && place.tensor &&
                           telens::get_name(*place.tensor) == telens::get_name(*place.gemm);
  if (place.gemm && !is_named_so) label += fmt::format(" {}", telens::get_name(*place.gemm));
  if (place.rank != kAllRanks && facts.ranks() > 1) label += fmt::format(", rank {}", place.rank);
  return printable(label);
}

std::string get_iterations(const Finding& finding) {
  return finding.first == finding.last
             ? fmt::format("iteration {}", finding.first)
             : fmt::format("iterations {} to {}", finding.first, finding.last);
}

std::vector<std::string> next_steps(const Finding& finding, const Facts& facts,
                                    const std::string& run) {
  constexpr std::string_view kBetween = "; ";
  std::string_view left =
      finding.next_step.empty() ? find_rule(finding.cause).next_step : finding.next_step;
  std::vector<std::string> steps;
  for (;;) {
    const std::size_t end = left.find(kBetween);
    steps.push_back(filled_in(left.substr(0, end), finding, facts, run));
    if (end == std::string_view::npos) return steps;
    left.remove_prefix(end + kBetween.size());
  }
}

std::string next_step(const Finding& finding, const Facts& facts, const std::string& run) {
  return fmt::format("{}", fmt::join(next_steps(finding, facts, run), "; "));
}

namespace {

Json text_or_null(std::string_view text) { return text.empty() ? Json() : json_text(text); }

template <typename Items, typename ToJson>
Json list(const Items& items, const ToJson& to_json) {
  Json array = Json::array();
  for (const auto& item : items) array.push_back(to_json(item));
  return array;
}

void add_place(Json& object, const Place& place, const Facts& facts) {
  object["layer"] = text_or_null(facts.layer_name(place.layer));
  object["tensor"] = place.tensor ? Json(telens::get_name(*place.tensor)) : Json();
  object["gemm"] = place.gemm ? Json(telens::get_name(*place.gemm)) : Json();
  object["rank"] = place.rank == kAllRanks ? Json() : Json(place.rank);
}

Json evidence_json(const Evidence& evidence, const Facts& facts) {
  Json object;
  object["statistic"] = json_text(evidence.statistic);
  add_place(object, evidence.place, facts);
  object["iteration"] = evidence.iteration;
  object["value"] = json_number(evidence.value);
  object["what"] = text_or_null(evidence.what);
  return object;
}

Json finding_json(const Finding& finding, const Facts& facts) {
  Json object;
  object["cause"] = json_text(finding.cause);
  object["summary"] = json_text(finding.summary);
  add_place(object, finding.place, facts);
  object["first_iteration"] = finding.first;
  object["last_iteration"] = finding.last;
  object["confidence"] = json_number(finding.confidence);
  object["evidence"] =
      list(finding.evidence, [&](const Evidence& each) { return evidence_json(each, facts); });
  return object;
}

Json skipped_json(const SkippedRule& skipped) {
  Json object;
  object["cause"] = json_text(skipped.rule->cause);
  object["title"] = json_text(skipped.rule->title);
  object["lacks"] = list(skipped.missing, [](const std::string& each) { return json_text(each); });
  object["recorded_by"] = json_text(skipped.rule->recorded_by);
  return object;
}

Json not_compared_json(const Rule& rule, const std::string& why) {
  Json object;
  object["cause"] = json_text(rule.cause);
  object["title"] = json_text(rule.title);
  object["why"] = json_text(why);
  return object;
}

Json inapplicable_json(const InapplicableRule& inapplicable) {
  Json object;
  object["cause"] = json_text(inapplicable.rule->cause);
  object["title"] = json_text(inapplicable.rule->title);
  object["statistics"] =
      list(inapplicable.statistics, [](const std::string& each) { return json_text(each); });
  object["under"] = json_text(inapplicable.under);
  return object;
}

Json ending_json(const RunEnding& ending) {
  Json object;
  object["state"] = get_name(ending.ending);
  object["rank"] = ending.rank ? Json(*ending.rank) : Json();
  object["iteration"] = ending.iteration ? Json(*ending.iteration) : Json();
  object["time"] = ending.time > 0 ? json_number(ending.time) : Json();
  object["reason"] = text_or_null(ending.reason);
  return object;
}

}  // namespace

Json ranked_json(const Ranked& ranked, const Facts& facts, const std::string& run) {
  const Rule& rule = find_rule(ranked.finding.cause);
  Json object = finding_json(ranked.finding, facts);
  object["title"] = json_text(rule.title);
  object["alternatives"] = json_text(rule.alternatives);
  object["next_step"] = json_text(next_step(ranked.finding, facts, run));
  object["consequences"] =
      list(ranked.consequences, [&](const Finding& each) { return finding_json(each, facts); });
  return object;
}

std::string diagnosis_json(const Diagnosis& diagnosis, const Facts& facts, const std::string& run,
                           const std::vector<std::string>& notes) {
  const bool any = diagnosis.first_iteration <= diagnosis.last_iteration;
  Json object;
  object["schema_version"] = kSchemaVersion;
  object["run"] = json_text(run);
  object["first_iteration"] = any ? Json(diagnosis.first_iteration) : Json();
  object["last_iteration"] = any ? Json(diagnosis.last_iteration) : Json();
  object["ending"] = ending_json(facts.ending());
  object["findings"] =
      list(diagnosis.findings, [&](const Ranked& each) { return ranked_json(each, facts, run); });
  object["recording"] = list(notes, [](const std::string& note) { return json_text(note); });
  object["not_recorded"] = list(diagnosis.skipped, skipped_json);
  object["not_compared"] = list(diagnosis.not_compared, [&](const Rule* rule) {
    return not_compared_json(*rule, diagnosis.why_not_compared);
  });
  object["not_meaningful"] = list(diagnosis.inapplicable, inapplicable_json);
  return json_line(object) + "\n";
}

namespace {

constexpr std::size_t kLeastPoints = 2;

// All series of a statistic of this tensor, as evidence names it.
std::vector<Series> all_series(const Facts& facts, const Evidence& evidence) {
  if (evidence.statistic == "root mean square") {
    return root_mean_squares(facts, *evidence.place.tensor);
  }
  std::vector<Series> all;
  for (const Series* series : facts.with(evidence.statistic)) {
    if (series->place.tensor == evidence.place.tensor) all.push_back(*series);
  }
  return all;
}

std::vector<Point> medians(const std::vector<const Series*>& peers) {
  std::map<std::int64_t, std::vector<double>> values;
  for (const Series* peer : peers) {
    for (const auto& [iteration, value] : peer->points) values[iteration].push_back(value);
  }
  std::vector<Point> points;
  for (auto& [iteration, of_iteration] : values) {
    points.push_back({iteration, median(std::move(of_iteration))});
  }
  return points;
}

}  // namespace

std::optional<EvidenceSeries> find_evidence_series(const Finding& finding, const Facts& facts) {
  for (const Evidence& evidence : finding.evidence) {
    const Place& place = evidence.place;
    if (!place.tensor || place.layer != finding.place.layer) continue;
    const std::vector<Series> all = all_series(facts, evidence);
    const auto own = std::ranges::find_if(all, [&](const Series& series) {
      return series.place.layer == place.layer && series.place.rank == place.rank &&
             (!place.gemm || series.place.gemm == place.gemm);
    });
    if (own == all.end() || own->points.size() < kLeastPoints) continue;
    const std::string kind = facts.get_kind(place.layer);
    std::vector<const Series*> peers;
    for (const Series& series : all) {
      const bool is_peer = series.place.layer != place.layer && series.place.rank == place.rank &&
                           series.place.gemm == own->place.gemm &&
                           facts.get_kind(series.place.layer) == kind;
      if (is_peer) peers.push_back(&series);
    }
    return EvidenceSeries{.statistic = evidence.statistic,
                          .place = own->place,
                          .points = own->points,
                          .peers = medians(peers),
                          .peer_count = peers.size()};
  }
  return std::nullopt;
}

}  // namespace telens::analysis
