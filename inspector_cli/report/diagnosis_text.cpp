#include "inspector_cli/report/diagnosis_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/base/printable.h"
#include "features/diagnosis/finding_words.h"
#include "features/diagnosis/rules.h"
#include "inspector_cli/terminal/number_text.h"
#include "inspector_cli/terminal/table_text.h"
#include "inspector_cli/terminal/terminal.h"

namespace telens::cli {
namespace {

using diagnosis::Diagnosis;
using diagnosis::Evidence;
using diagnosis::Facts;
using diagnosis::Finding;
using diagnosis::Place;
using diagnosis::Ranked;

constexpr std::size_t kIndent = 3;
constexpr std::size_t kNameWidth = 10;
constexpr std::size_t kMostConsequences = 4;

void print_line(std::string_view name, const std::string& line) {
  const std::string head = fmt::format("{:<{}}", name, kNameWidth);
  fmt::print("{:<{}}{}{}\n", "", kIndent, coloured(head, Colour::dim), line);
}

// "name     text", the text's further lines under its first one.
void paragraph(std::string_view name, const std::string& text, std::size_t width) {
  const std::size_t left = kIndent + kNameWidth;
  for (const std::string& line : wrapped_at_blanks(text, width > left ? width - left : 1)) {
    print_line(name, line);
    name = "";
  }
}

// A command has a line of its own, however long, for a shell takes it by the line.
void print_next_steps(const std::vector<std::string>& steps, std::size_t width) {
  std::string_view name = "next";
  for (const std::string& step : steps) {
    if (step.starts_with("telens ")) {
      print_line(name, step);
    } else {
      paragraph(name, step, width);
    }
    name = "";
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

void print_finding(std::size_t number, const Ranked& ranked, const Facts& facts,
                   const std::string& run, std::size_t width) {
  const Finding& finding = ranked.finding;
  const diagnosis::Rule& rule = diagnosis::find_rule(finding.cause);
  const std::string head = fmt::format("{}. {}: {}, {}", number, finding.cause,
                                       make_label(finding.place, facts), get_iterations(finding));
  for (const std::string& line : wrapped_at_blanks(head, width)) {
    fmt::print("{}\n", coloured(line, Colour::bold));
  }
  paragraph("found", printable(finding.summary), width);
  paragraph("evidence", describe_evidence(finding), width);
  paragraph("sure", fmt::format("{:.0f} %", 100 * finding.confidence), width);
  paragraph("or else", std::string(rule.alternatives), width);
  print_next_steps(next_steps(finding, facts, run), width);
  if (!ranked.consequences.empty())
    paragraph("follows", describe_consequences(ranked, facts), width);
  fmt::print("\n");
}

void print_unasked(const Diagnosis& diagnosis, std::size_t width) {
  const auto print = [width](const std::string& text) {
    for (const std::string& line : wrapped_at_blanks(printable(text), width)) {
      fmt::print("{}\n", line);
    }
  };
  for (const auto& [rule, lacks] : diagnosis.unasked) {
    print(fmt::format("not looked for, since it was not recorded: {} ({}); {}", rule->cause,
                      fmt::join(lacks, ", "), rule->recorded_by));
  }
  if (const auto& [rules, why] = diagnosis.not_compared; !rules.empty()) {
    std::string causes;
    for (const diagnosis::Rule* rule : rules) {
      causes += fmt::format("{}{}", causes.empty() ? "" : ", ", rule->cause);
    }
    print(fmt::format("not looked for, since ranks were not compared: {} ({})", causes, why));
  }
  for (const auto& [rule, statistics, under] : diagnosis.meaningless) {
    print(fmt::format("not meaningful under {}: {} ({})", under, rule->cause,
                      fmt::join(statistics, ", ")));
  }
}

}  // namespace

void print_notes(const std::vector<std::string>& notes, std::size_t width) {
  for (const std::string& note : notes) {
    for (const std::string& line : wrapped_at_blanks(printable(note), width)) {
      fmt::print("{}\n", coloured(line, Colour::yellow));
    }
  }
  if (!notes.empty()) fmt::print("\n");
}

void print_diagnosis(const Diagnosis& diagnosis, const Facts& facts, const std::string& run,
                     std::size_t width) {
  for (std::size_t i = 0; i < diagnosis.findings.size(); ++i) {
    print_finding(i + 1, diagnosis.findings[i], facts, run, width);
  }
  if (diagnosis.first_iteration > diagnosis.last_iteration) {
    fmt::print(
        "{} recorded that a diagnosis could read; configs/flight_recorder.yaml records what it "
        "asks for, and telens info shows what happened\n",
        diagnosis.findings.empty() ? "nothing was" : "nothing else was");
    return;
  }
  if (diagnosis.findings.empty()) {
    fmt::print("no finding in iterations {} to {}, by {} of {} rules\n", diagnosis.first_iteration,
               diagnosis.last_iteration, diagnosis.asked, diagnosis.applicable());
  }
  print_unasked(diagnosis, width);
}

}  // namespace telens::cli
