// The effect of a configuration on layers with given names: the table that `telens plan` and
// telens.debug.plan show. Built without a session or a model.
#pragma once

#include <cstdint>
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

  // True if the tensor is neither an operand nor the result of the GEMM. This is legal, but the
  // feature is never called for it.
  bool idle() const;
  // False if the row is idle or only the feature knows.
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

}  // namespace telens::config
