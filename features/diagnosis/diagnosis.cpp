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
  for (const std::string_view statistic : rule.required) {
    if (!facts.has(statistic)) names.emplace_back(statistic);
  }
  if (rule.needs_ledger && facts.gemm_states().empty()) names.emplace_back("a ledger");
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
      diagnosis.unasked.push_back({&rule, std::move(names)});
      continue;
    }
    std::ranges::move(rule.find(facts), std::back_inserter(findings));
  }
  diagnosis.findings = rank(std::move(findings));
  return diagnosis;
}

}  // namespace telens::diagnosis
