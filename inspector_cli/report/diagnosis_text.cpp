#include "inspector_cli/report/diagnosis_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "analysis/baseline.h"
#include "analysis/findings.h"
#include "analysis/rules.h"
#include "analysis/run_state.h"
#include "core/base/json.h"
#include "core/base/text.h"
#include "inspector_cli/report/run_view.h"
#include "inspector_cli/terminal/terminal.h"
#include "inspector_cli/terminal/text.h"

namespace telens::cli {
namespace {

using diagnosis::Diagnosis;
using diagnosis::Evidence;
using diagnosis::Facts;
using diagnosis::Finding;
using diagnosis::Place;
using diagnosis::Ranked;

constexpr std::size_t kIndent = 3;
constexpr std::size_t kMostConsequences = 4;
constexpr std::size_t kMostFindings = 3;  // by default
constexpr std::size_t kMostFolded = 5;    // that are named

void print_line(const std::string& line) { fmt::print("{:<{}}{}\n", "", kIndent, line); }

// Prints the text in lines that are indented.
void paragraph(const std::string& text, std::size_t width) {
  for (const std::string& line : wrapped_at_blanks(text, width > kIndent ? width - kIndent : 1)) {
    print_line(line);
  }
}

// Prints each command on one line, however long, so that it can be pasted into a shell.
void print_next_steps(const std::vector<std::string>& steps, std::size_t width) {
  std::string text;
  for (const std::string& step : steps) {
    if (step.starts_with("telens ")) continue;
    text += text.empty() ? "Next: " : "; ";
    text += step;
  }
  const bool has_text = !text.empty();
  if (has_text) paragraph(text + ".", width);
  for (const std::string& step : steps) {
    if (step.starts_with("telens ")) print_line((has_text ? "  " : "Next: ") + step);
  }
}

std::string evidence_text(const Evidence& evidence) {
  if (evidence.statistic.starts_with("ledger")) {
    return printable(evidence.what.empty()
                         ? evidence.statistic
                         : fmt::format("{}: {}", evidence.statistic, evidence.what));
  }
  const std::string what = evidence.what.empty() ? "" : fmt::format(" ({})", evidence.what);
  return printable(fmt::format("{} {}{} in iteration {}", evidence.statistic,
                               number_text(evidence.value), what, evidence.iteration));
}

std::string describe_evidence(const Finding& finding) {
  std::string text;
  for (const Evidence& evidence : finding.evidence) {
    text += (text.empty() ? "" : "; ") + evidence_text(evidence);
  }
  return text;
}

std::string describe_consequences(const Ranked& ranked, const Facts& facts) {
  std::string text;
  const std::size_t shown = std::min(kMostConsequences, ranked.consequences.size());
  for (std::size_t i = 0; i < shown; ++i) {
    const Finding& each = ranked.consequences[i];
    text += fmt::format("{}{} of {} from {}", i == 0 ? "" : "; ", each.cause,
                        make_label(each.place, facts), each.first);
  }
  const std::size_t more = ranked.consequences.size() - shown;
  if (more > 0) text += fmt::format("; and {} more", more);
  return text;
}

// Values whose sizes differ by a factor of 8 and more are compared in bits.
std::vector<diagnosis::Point> scaled_for_picture(std::vector<diagnosis::Point> points,
                                                 bool in_bits) {
  for (diagnosis::Point& point : points) {
    if (in_bits && std::isfinite(point.value)) point.value = diagnosis::bits(point.value);
  }
  return points;
}

// Prints the series of the evidence above that of its peers, on one scale.
void print_picture(const Finding& finding, const Facts& facts, std::size_t width) {
  constexpr double kInBits = 8;
  constexpr std::size_t kWidest = 48;
  const auto series = diagnosis::find_evidence_series(finding, facts);
  if (!series) return;
  std::vector<diagnosis::Point> all = series->points;
  all.insert(all.end(), series->peers.begin(), series->peers.end());
  const Range range = finite_range(all);
  if (!(range.low <= range.high)) return;
  const bool in_bits = range.low > 0 && range.high / range.low >= kInBits;
  const Range scale = finite_range(scaled_for_picture(all, in_bits));
  const std::size_t columns = std::min(kWidest, width / 2);
  const auto line = [&](const std::vector<diagnosis::Point>& points) {
    return sparkline(scaled_for_picture(points, in_bits), columns, scale);
  };
  print_line(fmt::format("{}  {}", line(series->points), printable(series->statistic)));
  if (series->peers.empty()) return;
  print_line(fmt::format("{}  {} in {} other block{}", line(series->peers),
                         series->peer_count == 1 ? "the same" : "median", series->peer_count,
                         series->peer_count == 1 ? "" : "s"));
}

std::string capitalized(std::string text) {
  if (!text.empty()) {
    text.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(text.front())));
  }
  return text;
}

// One paragraph: what was observed, the evidence, other explanations. Then the picture and next
// steps.
void print_finding(std::size_t number, const Ranked& ranked, const Facts& facts,
                   const std::string& run, std::size_t width) {
  const Finding& finding = ranked.finding;
  const diagnosis::Rule& rule = diagnosis::find_rule(finding.cause);
  const std::string head = fmt::format("{}. {}: {}, {}", number, finding.cause,
                                       make_label(finding.place, facts), get_iterations(finding));
  for (const std::string& line : wrapped_at_blanks(head, width)) {
    fmt::print("{}\n", colored(line, Color::bold));
  }
  std::string text = capitalized(printable(finding.summary)) + ".";
  if (!finding.evidence.empty()) text += " Evidence: " + describe_evidence(finding) + ".";
  text += fmt::format(" Confidence: {:.0f} %. Also possible: {}", 100 * finding.confidence,
                      rule.alternatives);
  paragraph(text, width);
  print_picture(finding, facts, width);
  print_next_steps(next_steps(finding, facts, run), width);
  if (!ranked.consequences.empty()) {
    paragraph("Follows from it: " + describe_consequences(ranked, facts) + ".", width);
  }
  fmt::print("\n");
}

// One line about the findings that are not printed.
void print_folded(const std::vector<Ranked>& findings, std::size_t shown, const Facts& facts,
                  std::size_t width) {
  if (findings.size() <= shown) return;
  const std::size_t count = findings.size() - shown;
  std::string text = fmt::format("{} more finding{}: ", count, count == 1 ? "" : "s");
  for (std::size_t i = 0; i < std::min(count, kMostFolded); ++i) {
    const Finding& each = findings[shown + i].finding;
    text += fmt::format("{}{} of {} from {}", i == 0 ? "" : "; ", each.cause,
                        make_label(each.place, facts), each.first);
  }
  if (count > kMostFolded) text += "; ...";
  for (const std::string& line : wrapped_at_blanks(text + " (--all prints them)", width)) {
    fmt::print("{}\n", line);
  }
}

// Returns the features of the first alternative: A and B for "A (statistics) and B, or C". Returns
// a call such as "debug.step(loss=...)" unchanged.
std::vector<std::string> first_features(std::string_view recorded_by) {
  if (recorded_by.starts_with("debug.")) return {std::string(recorded_by)};
  std::vector<std::string> features;
  int depth = 0;  // of parentheses
  for (std::size_t begin = 0; begin < recorded_by.size();) {
    const std::size_t end = std::min(recorded_by.find(' ', begin), recorded_by.size());
    std::string_view word = recorded_by.substr(begin, end - begin);
    begin = end + 1;
    const int outside = depth;
    depth += static_cast<int>(std::ranges::count(word, '('));
    depth -= static_cast<int>(std::ranges::count(word, ')'));
    if (outside > 0) continue;
    if (word == "or") break;
    const bool is_last = word.ends_with(';');
    while (word.ends_with(',') || word.ends_with(';')) word.remove_suffix(1);
    const auto is_lower = [](char c) { return c >= 'a' && c <= 'z'; };
    const auto is_upper = [](char c) { return c >= 'A' && c <= 'Z'; };
    const bool is_feature = !word.empty() && is_upper(word.front()) &&
                            std::ranges::count_if(word, is_upper) > 1 &&
                            std::ranges::any_of(word, is_lower);
    if (is_feature) features.emplace_back(word);
    if (is_last) break;
  }
  return features;
}

void add_once(std::vector<std::string>& names, std::string name) {
  if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
}

std::string join_causes(const std::vector<const diagnosis::Rule*>& rules, std::size_t most) {
  std::string causes;
  for (std::size_t i = 0; i < std::min(most, rules.size()); ++i) {
    causes += fmt::format("{}{}", i == 0 ? "" : ", ", rules[i]->cause);
  }
  return rules.size() > most ? causes + ", ..." : causes;
}

std::string count_rules(std::size_t count) {
  return fmt::format("{} rule{}", count, count == 1 ? "" : "s");
}

// Returns one line about all rules that lack data and how to record it.
std::string summarize_missing(const Diagnosis& diagnosis, std::string_view config) {
  constexpr std::size_t kMostCauses = 3;
  std::vector<const diagnosis::Rule*> rules;
  std::vector<std::string> features;
  for (const auto& [rule, missing] : diagnosis.skipped) {
    rules.push_back(rule);
    for (const std::string& each : first_features(rule->recorded_by)) {
      const bool is_on = config.find(each) != std::string_view::npos;
      add_once(features, is_on ? fmt::format("more statistics of {}", each) : each);
    }
  }
  return fmt::format("{} skipped for missing data; add {} to check {} (--missing lists all)",
                     count_rules(rules.size()), fmt::join(features, ", "),
                     join_causes(rules, kMostCauses));
}

// Returns one line per skipped rule.
std::vector<std::string> list_missing(const Diagnosis& diagnosis) {
  std::vector<std::string> lines;
  for (const auto& [rule, missing] : diagnosis.skipped) {
    lines.push_back(fmt::format("skipped {}: needs {}, recorded by {}", rule->cause,
                                fmt::join(missing, ", "), rule->recorded_by));
  }
  for (const auto& [rule, statistics, under] : diagnosis.inapplicable) {
    lines.push_back(fmt::format("skipped {}: {} {} no meaning under {}", rule->cause,
                                fmt::join(statistics, ", "),
                                statistics.size() == 1 ? "has" : "have", under));
  }
  return lines;
}

std::string rule_section(const diagnosis::Rule& rule) {
  return fmt::format("## {}\n\n{}.\n\n{}\n\n- Recorded by: {}.\n- Also possible: {}\n- Next: {}.\n",
                     rule.cause,
                     std::string(1, static_cast<char>(std::toupper(rule.title.front()))) +
                         std::string(rule.title.substr(1)),
                     rule.doc, rule.recorded_by, rule.alternatives, rule.next_step);
}

}  // namespace

void print_ending(const diagnosis::RunEnding& ending, std::size_t width) {
  for (const std::string& line : wrapped_at_blanks(printable(describe(ending)), width)) {
    fmt::print("{}\n", ending.is_failure() ? colored(line, Color::red) : line);
  }
}

void print_notes(const std::vector<std::string>& notes, std::size_t width) {
  for (const std::string& note : notes) {
    for (const std::string& line : wrapped_at_blanks(printable(note), width)) {
      fmt::print("{}\n", colored(line, Color::yellow));
    }
  }
  if (!notes.empty()) fmt::print("\n");
}

void print_diagnosis(const Diagnosis& diagnosis, const Facts& facts, const std::string& run,
                     bool all, std::size_t width) {
  const std::size_t count = diagnosis.findings.size();
  const std::size_t shown = all ? count : std::min(count, kMostFindings);
  for (std::size_t i = 0; i < shown; ++i) {
    print_finding(i + 1, diagnosis.findings[i], facts, run, width);
  }
  print_folded(diagnosis.findings, shown, facts, width);
  if (diagnosis.first_iteration > diagnosis.last_iteration) {
    fmt::print(
        "{} to diagnose was recorded; configs/flight_recorder.yaml records the data for the "
        "rules, and telens info shows how the run ended\n",
        diagnosis.findings.empty() ? "nothing" : "nothing else");
    return;
  }
  if (diagnosis.findings.empty()) {
    fmt::print("no problems found in iterations {}-{} ({} of {} rules checked)\n",
               diagnosis.first_iteration, diagnosis.last_iteration, diagnosis.checked,
               diagnosis.applicable());
  }
}

void print_skipped_rules(const Diagnosis& diagnosis, std::string_view config, bool list,
                         std::size_t width) {
  if (diagnosis.first_iteration > diagnosis.last_iteration && !list) return;
  std::vector<std::string> lines;
  if (list) {
    lines = list_missing(diagnosis);
  } else if (!diagnosis.skipped.empty()) {
    lines.push_back(summarize_missing(diagnosis, config));
  }
  if (const auto& rules = diagnosis.not_compared; !rules.empty()) {
    lines.push_back(fmt::format("{} skipped because ranks were not compared ({}): {}",
                                count_rules(rules.size()), diagnosis.why_not_compared,
                                join_causes(rules, rules.size())));
  }
  for (const std::string& text : lines) {
    for (const std::string& line : wrapped_at_blanks(printable(text), width)) {
      fmt::print("{}\n", line);
    }
  }
}

std::string rules_markdown() {
  std::string text;
  for (const diagnosis::Rule& rule : diagnosis::rules()) {
    text += (text.empty() ? "" : "\n") + rule_section(rule);
  }
  return text;
}

std::string rules_json() {
  Json object;
  object["schema_version"] = diagnosis::kSchemaVersion;
  object["rules"] = Json::array();
  for (const diagnosis::Rule& rule : diagnosis::rules()) {
    Json each;
    for (const auto& [key, text] : {std::pair("cause", rule.cause),
                                    {"title", rule.title},
                                    {"doc", rule.doc},
                                    {"recorded_by", rule.recorded_by},
                                    {"alternatives", rule.alternatives},
                                    {"next_step", rule.next_step}}) {
      each[key] = json_text(text);
    }
    object["rules"].push_back(std::move(each));
  }
  return json_line(object) + "\n";
}

}  // namespace telens::cli
