// The features of a session: an instance for each enabled entry of the configuration, the switches
// of their sections, and the features that decide.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "hooks/decisions.h"
#include "hooks/feature_registry.h"
#include "hooks/sections.h"
#include "hooks/session/layer_routing.h"
#include "hooks/session/observer_isolation.h"

namespace telens::debug {

class FeatureSet {
 public:
  // Called once, before anything else. Features may use `services` from here on; all arguments
  // outlive the set. `budgets_off`: no budget applies. Throws ConfigError for mistakes that
  // descriptions could not detect.
  void make(const config::Config& config, const FeatureRegistry& registry,
            FeatureServices& services, ObserverIsolation& guard, EventLog& events,
            bool budgets_off);

  // Returns the features that watch the layer while their section runs.
  std::vector<FeatureInstance*> all_for(std::string_view layer_name) const;
  // Returns the features whose section runs now.
  static std::vector<FeatureInstance*> running(std::vector<FeatureInstance*> features);
  std::vector<FeatureInstance*> running_for(std::string_view layer_name) const {
    return running(all_for(layer_name));
  }

  // Returns true if any statistic of a weight (or of another tensor) is due. Depends only on the
  // configuration, so every rank returns the same: ranks whose layers did not run also have to join
  // the collective.
  bool reads_statistics(bool of_weights, std::int64_t iteration) const;

  const std::vector<std::unique_ptr<FeatureInstance>>& all() const { return instances_; }
  SectionSwitches& sections() { return *sections_; }
  Decisions& decisions() { return decisions_; }

 private:
  const config::Config* config_ = nullptr;
  std::optional<SectionSwitches> sections_;
  std::vector<std::unique_ptr<FeatureInstance>> instances_;
  Decisions decisions_;
};

}  // namespace telens::debug
