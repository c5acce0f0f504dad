// Estimates how much a plan records, before anything has run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hooks/config/plan.h"

namespace telens::config {

// Bytes of a run file per record, measured in the sample's run with all statistics in every
// iteration (benchmarks/results: "bytes per record of the sample's run").
inline constexpr double kBytesPerRecord = 4.7;

// Records per step if every layer runs quantized in every iteration: an upper bound of what one
// rank writes before any trigger fires.
struct RecordLoad {
  double average = 0;
  // The average is over these iterations. Without `last`, it is over all from the first on.
  std::int64_t first = 0;
  std::optional<std::int64_t> last;
  std::int64_t most = 0;                 // in the busiest iteration
  std::int64_t busiest = 0;              // the first such iteration
  std::vector<std::string> not_counted;  // qualified names of features with unknown load
  std::vector<std::string> waiting;  // sections that start after another section's feature fires

  std::string refusal;  // why the load is not estimated; empty if it is

  // "9.6 records (45 bytes) a step on average, at most 96 (451 bytes) in iteration 0"
  std::string text() const;
};

RecordLoad estimate_load(const Plan& plan);

// Returns the number of records that an iteration writes.
std::int64_t records_in(const Plan& plan, std::int64_t iteration);

// Returns "; sections that record only once a trigger fires: 'closer_look'", or "".
std::string about_waiting(const std::vector<std::string>& sections);

}  // namespace telens::config
