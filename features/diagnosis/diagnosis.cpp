#include "features/diagnosis/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "features/diagnosis/ranking.h"
#include "features/diagnosis/rules.h"

namespace telens::diagnosis {
namespace {

std::vector<std::string> lacks(const Rule& rule, const Facts& facts) {
  std::vector<std::string> names;
  for (const std::string_view entry : rule.required) {
    const auto names_of_entry = alternatives_in(entry);
    const bool has_any = std::ranges::any_of(
        names_of_entry, [&](std::string_view statistic) { return facts.has(statistic); });
    if (!has_any) names.emplace_back(names_of_entry.front());
  }
  const auto recorded = [&](std::string_view statistic) { return facts.has(statistic); };
  const bool has_other = std::ranges::any_of(rule.instead_of_ledger, recorded);
  if (rule.needs_ledger && facts.gemm_states().empty() && !has_other) {
    names.emplace_back("a ledger");
  }
  return names;
}

// A finding that begins with a process that goes on with the run may come from its checkpoint.
void tell_resume(Finding& finding, const Facts& facts) {
  constexpr std::int64_t kSteps = 2;
  for (const Resume& resume : facts.resumes()) {
    if (finding.first < resume.first || finding.first > resume.first + kSteps) continue;
    finding.summary += fmt::format("; the run was resumed at iteration {}", resume.first);
    return;
  }
}

}  // namespace

Diagnosis diagnose(const Facts& facts) {
  Diagnosis diagnosis{.first_iteration = facts.first_iteration(),
                      .last_iteration = facts.last_iteration()};
  std::vector<Finding> findings;
  for (const Rule& rule : rules()) {
    auto names = lacks(rule, facts);
    if (!names.empty()) {
      const bool could_have = !rule.compares_ranks || facts.ranks() > 1;
      if (could_have) diagnosis.unasked.push_back({&rule, std::move(names)});
      continue;
    }
    ++diagnosis.asked;
    std::ranges::move(rule.find(facts), std::back_inserter(findings));
  }
  for (Finding& finding : findings) tell_resume(finding, facts);
  diagnosis.findings = rank(std::move(findings));
  return diagnosis;
}

}  // namespace telens::diagnosis
