// A finding: a feature says that something is wrong with the run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace telens::debug {

struct Finding {
  std::string cause;  // a stable word, as "nonfinite"
  std::string layer;  // "": of no single one
  std::int64_t first_iteration = 0;
  std::int64_t last_iteration = 0;  // up to which it was seen
  double confidence = 0;            // 0 to 1
  std::string text;                 // a line: what, where, since when, and what to do next
  std::string json;                 // an object; of Diagnosis, as docs/diagnosis.md has it
};

// Called on a thread of the feature's own, which may wait as long as it likes. One that throws is
// told once and called no more in that session.
using FindingListener = std::function<void(const Finding&)>;

}  // namespace telens::debug
