// The effect of a configuration on layers with given names: the table that `telens plan` and
// telens.debug.plan show, and an estimate of how much it records. Built without a session or a
// model.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hooks/config/config.h"

namespace telens::config {

// A feature applied to a (gemm, tensor) of a layer.
struct PlanRow {
  std::string layer;
  const FeatureEntry* entry;   // valid as long as the plan's config
  const Selection* selection;  // nullptr if the feature parses its own configuration

  // Returns true if the tensor is neither an operand nor the result of the GEMM. This is legal, but
  // the feature is never called for it.
  bool idle() const;
  // Returns false if the row is idle, or if only the feature can decide.
  bool due(std::int64_t iteration) const;
  std::string gemm() const;    // "" if the feature does not select GEMMs
  std::string tensor() const;  // "" if the feature does not select tensors
  std::string when() const;    // description of its schedule
};

struct Plan {
  Config config;
  std::vector<std::string> layers;  // the layers of the plan, each once
  std::vector<PlanRow> rows;        // by layer, GEMM, tensor, and then in text order
  std::vector<std::string> warnings;

  std::size_t touched_layers() const;
};

// Throws ConfigError with all layers that two sections select or two features modify. The warnings
// are the config's, plus selectors that match no layer.
Plan make_plan(const Config& config, std::span<const std::string> layer_names);

// ---- the number of records of a plan, estimated before anything has run

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
