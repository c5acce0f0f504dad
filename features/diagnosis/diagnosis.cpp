#include "features/diagnosis/diagnosis.h"

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
  diagnosis.findings = rank(std::move(findings));
  return diagnosis;
}

}  // namespace telens::diagnosis
