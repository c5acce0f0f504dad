// The diagnosis of a run: all rules over its facts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/diagnosis_finding.h"
#include "analysis/facts.h"
#include "analysis/rule.h"

namespace telens::analysis {

// A rule that could not be asked, since the run lacks what it reads.
struct Unasked {
  const Rule* rule = nullptr;
  std::vector<std::string> lacks;  // statistics, or "a ledger"
};

// A rule that no recording feeds in a run like this one: what it reads has no meaning there.
struct Meaningless {
  const Rule* rule = nullptr;
  std::vector<std::string> statistics;
  std::string under;  // "128x128 block scaling", or "high precision"
};

// Rules for which ranks could not be compared, whatever was recorded.
struct NotCompared {
  std::vector<const Rule*> rules;
  std::string why;  // a clause
};

struct Diagnosis {
  std::vector<Ranked> findings = {};
  std::vector<Unasked> unasked = {};
  std::vector<Meaningless> meaningless = {};
  NotCompared not_compared = {};
  std::size_t asked = 0;             // rules that looked; those about the ending do not count
  std::int64_t first_iteration = 0;  // that were looked at; first > last: none
  std::int64_t last_iteration = -1;

  // Rules that would look at a run like this one, had it recorded what they read.
  std::size_t applicable() const { return asked + unasked.size() + not_compared.rules.size(); }
};

// Throws RecordError where the run cannot be read.
Diagnosis diagnose(const Facts& facts);

}  // namespace telens::analysis
