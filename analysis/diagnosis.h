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
struct Unasked {
  const Rule* rule = nullptr;
  std::vector<std::string> lacks;  // statistics, or "a ledger"
};

// A rule that does not apply to this run, because the statistics that it reads have no meaning
// here.
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

  // Number of rules that apply to this run if their input is recorded.
  std::size_t applicable() const { return asked + unasked.size() + not_compared.rules.size(); }
};

// Throws RecordError if the run cannot be read.
Diagnosis diagnose(const Facts& facts);

}  // namespace telens::analysis
