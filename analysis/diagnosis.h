// The diagnosis of a run: all rules over its facts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/facts.h"
#include "analysis/rule.h"

namespace telens::analysis {

// A rule that was skipped because the run does not contain its input.
struct SkippedRule {
  const Rule* rule = nullptr;
  std::vector<std::string> missing;  // statistics, or "a ledger"
};

// A rule that does not apply to this run, because the statistics that it reads have no meaning
// here.
struct InapplicableRule {
  const Rule* rule = nullptr;
  std::vector<std::string> statistics;
  std::string under;  // "128x128 block scaling", or "high precision"
};

struct Diagnosis {
  std::vector<Ranked> findings = {};
  std::vector<SkippedRule> skipped = {};
  std::vector<InapplicableRule> inapplicable = {};
  // Rules for which ranks could not be compared, whatever was recorded, and a clause that says why.
  std::vector<const Rule*> not_compared = {};
  std::string why_not_compared = {};
  std::size_t checked = 0;           // rules that ran, except those about the end of the run
  std::int64_t first_iteration = 0;  // first diagnosed iteration; greater than the last if none
  std::int64_t last_iteration = -1;

  // Number of rules that apply to this run if their input is recorded.
  std::size_t applicable() const { return checked + skipped.size() + not_compared.size(); }
};

// Throws RecordError if the run cannot be read.
Diagnosis diagnose(const Facts& facts);

}  // namespace telens::analysis
