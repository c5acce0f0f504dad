// The effect of a configuration on layers of given names: the table that `telens plan` and
// telens.debug.plan show, made without a session or a model.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "hooks/config/config.h"

namespace telens::config {

// One feature on one (gemm, tensor) of one layer.
struct PlanRow {
  std::string layer;
  const FeatureEntry* entry;   // lives as long as the plan's config
  const Selection* selection;  // nullptr: the feature parses its own configuration

  // The tensor is neither an operand nor the result of the GEMM: legal, and never called.
  bool idle() const;
  // False where only the feature knows, or the row is idle.
  bool due(std::int64_t iteration) const;
  std::string gemm() const;    // "": the feature does not choose GEMMs
  std::string tensor() const;  // "": the feature does not choose tensors
  std::string when() const;    // its schedule in words
};

struct Plan {
  Config config;
  std::vector<std::string> layers;  // those that it was made for, each once
  std::vector<PlanRow> rows;        // by layer, then GEMM, then tensor; then as in the text
  std::vector<std::string> warnings;

  std::size_t touched_layers() const;
};

// Throws ConfigError with all layers that two sections select or two features modify. The warnings
// are those of the config, and selectors that fit none of the layers.
Plan make_plan(const Config& config, std::span<const std::string> layer_names);

}  // namespace telens::config
