// The features of a session: an instance for each enabled entry of the configuration, the switches
// of their sections, and those among them that decide.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "hooks/decisions.h"
#include "hooks/feature_registry.h"
#include "hooks/section_switches.h"
#include "hooks/session/layer_routing.h"
#include "hooks/session/observer_isolation.h"

namespace telens::debug {

class FeatureSet {
 public:
  // Once, before anything else. `services` may be used by features from here on; all arguments live
  // longer. `budgets_off`: no budget applies. Throws ConfigError for what descriptions could not
  // check.
  void make(const config::Config& config, const FeatureRegistry& registry,
            FeatureServices& services, ObserverIsolation& guard, EventLog& events,
            bool budgets_off);

  // Those that watch the layer while their section runs.
  std::vector<FeatureInstance*> all_for(std::string_view layer_name) const;
  // Those whose section runs now.
  static std::vector<FeatureInstance*> running(std::vector<FeatureInstance*> features);
  std::vector<FeatureInstance*> running_for(std::string_view layer_name) const {
    return running(all_for(layer_name));
  }

  // True if any statistic of a weight (or of another tensor) is due. Every rank answers alike, from
  // the configuration alone: ranks whose layers did not run have to come to the collective too.
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
