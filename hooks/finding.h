// A finding: a feature reports a problem with the run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace telens::debug {

struct Finding {
  std::string cause;  // a stable word, such as "nonfinite"
  std::string layer;  // "" if it does not concern a single layer
  std::int64_t first_iteration = 0;
  std::int64_t last_iteration = 0;  // last iteration in which it was seen
  double confidence = 0;            // 0 to 1
  // one line: the problem, its place, since when, and the next step
  std::string text;
  std::string json;  // an object; for Diagnosis, see docs/diagnosis.md
};

// Called on a thread of the feature, and may block as long as necessary. A listener that throws is
// reported once and not called again in that session.
using FindingListener = std::function<void(const Finding&)>;

}  // namespace telens::debug
