// How much a plan records, before anything has run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hooks/config/plan.h"

namespace telens::config {

// Bytes of a run file per record; measured in the sample's run with all statistics in every
// iteration (benchmarks/results: "bytes per record of the sample's run").
inline constexpr double kBytesPerRecord = 4.7;

// Records per step, if every layer runs, quantized, in every iteration: an upper bound of what one
// rank writes before any trigger fires.
struct RecordLoad {
  double average = 0;
  // The average is over these iterations; no last: from the first on, for ever.
  std::int64_t first = 0;
  std::optional<std::int64_t> last;
  std::int64_t most = 0;                 // in the busiest iteration
  std::int64_t busiest = 0;              // the first such
  std::vector<std::string> not_counted;  // features of which it is not known, by qualified name
  std::vector<std::string> waiting;      // sections that record once another one's feature fires

  std::string refusal;  // why nothing is estimated; empty: it is

  // "9.6 records (45 bytes) a step on average, at most 96 (451 bytes) in iteration 0"
  std::string text() const;
};

RecordLoad estimate_load(const Plan& plan);

// Records that one iteration writes.
std::int64_t records_in(const Plan& plan, std::int64_t iteration);

// "; sections that record only once a trigger fires: 'closer_look'", or nothing.
std::string about_waiting(const std::vector<std::string>& sections);

}  // namespace telens::config
