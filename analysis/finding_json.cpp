#include "analysis/finding_json.h"

#include <nlohmann/json.hpp>

#include "analysis/finding_words.h"
#include "analysis/rules.h"

namespace telens::analysis {
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

Json unasked_json(const Unasked& unasked) {
  Json object;
  object["cause"] = json_text(unasked.rule->cause);
  object["title"] = json_text(unasked.rule->title);
  object["lacks"] = list(unasked.lacks, [](const std::string& each) { return json_text(each); });
  object["recorded_by"] = json_text(unasked.rule->recorded_by);
  return object;
}

Json not_compared_json(const Rule& rule, const std::string& why) {
  Json object;
  object["cause"] = json_text(rule.cause);
  object["title"] = json_text(rule.title);
  object["why"] = json_text(why);
  return object;
}

Json meaningless_json(const Meaningless& meaningless) {
  Json object;
  object["cause"] = json_text(meaningless.rule->cause);
  object["title"] = json_text(meaningless.rule->title);
  object["statistics"] =
      list(meaningless.statistics, [](const std::string& each) { return json_text(each); });
  object["under"] = json_text(meaningless.under);
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
  object["not_recorded"] = list(diagnosis.unasked, unasked_json);
  object["not_compared"] = list(diagnosis.not_compared.rules, [&](const Rule* rule) {
    return not_compared_json(*rule, diagnosis.not_compared.why);
  });
  object["not_meaningful"] = list(diagnosis.meaningless, meaningless_json);
  return json_line(object) + "\n";
}

}  // namespace telens::analysis
