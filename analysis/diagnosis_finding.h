// A finding of a rule: a cause, where and since when, and the numbers that show it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/series.h"

namespace telens::analysis {

// A number from the run: `statistic` at a place and iteration. `what` is its role, such as "usual"
// or "expected"; empty for the observed value.
struct Evidence {
  std::string statistic;
  Place place;
  std::int64_t iteration = 0;
  double value = 0;
  std::string what;
};

struct Finding {
  std::string_view cause;  // the rule's class
  Place place;             // all unset for a cause that belongs to no single layer
  std::int64_t first = 0;  // iterations
  std::int64_t last = 0;
  double confidence = 0;     // 0 to 1
  std::string summary = {};  // one sentence without a period
  std::vector<Evidence> evidence = {};
  bool gradual = false;        // it grew: by chance an iteration before it had to
  std::string next_step = {};  // replaces the rule's next step
};

// A finding, those that follow from it, and how many times the same was found elsewhere.
struct Ranked {
  Finding finding;
  std::vector<Finding> consequences;
};

}  // namespace telens::analysis
