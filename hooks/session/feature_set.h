// The features of a session: an instance for each enabled entry of the configuration, the switches
// of their sections, the features that decide, and the isolation of the training from failures.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "hooks/decisions.h"
#include "hooks/feature_registry.h"
#include "hooks/sections.h"
#include "hooks/session/layer_routing.h"
#include "hooks/session/logs.h"
#include "hooks/tensor_ops.h"

namespace telens::debug {

// ---- isolation of the training from failures of features that observe

// "feature 'FakeQuant' of section 'first' in layer 'fc1', modify_tensor"
std::string make_context(const FeatureInstance& feature, std::string_view layer_name,
                         std::string_view call_name);

// Disables a feature that throws in an observing call for the session, records it, and warns once.
// Interruptions are rethrown.
class ObserverIsolation {
 public:
  explicit ObserverIsolation(EventLog& events) : events_(events) {}

  // Runs an observing call, unless the feature is off.
  template <typename Call>
  void observe(FeatureInstance& feature, std::string_view layer_name, std::string_view call_name,
               Call&& call) {
    if (!feature.observes.load(std::memory_order_relaxed) || closed_.load()) return;
    const NoGradScope no_grad;
    try {
      call();
    } catch (...) {
      rethrow_interruption();
      switch_off(feature, layer_name, call_name);
    }
  }

  // Like observe(), for a call that is shown tensors. Foreign code that writes to the tensors that
  // `show` adds is disabled, and the state of the random number generators is restored.
  struct Shown {
    std::string_view layer_name;
    std::string_view call_name;
    std::optional<DeviceId> device;  // nullopt during a graph capture, when nothing is checked
  };
  using Show = std::function<void(MutationGuard& guard)>;
  void observe_tensors(FeatureInstance& feature, const Shown& shown, const Show& show,
                       const std::function<void()>& call);
  // Warns once that a feature draws torch's random numbers.
  void tell_of_randomness(FeatureInstance& feature, std::string_view layer_name,
                          std::string_view call_name);

  // Call it while an exception is handled.
  void switch_off(FeatureInstance& feature, std::string_view layer_name,
                  std::string_view call_name);
  // Like switch_off() above, with a given reason.
  void switch_off(FeatureInstance& feature, std::string_view layer_name, std::string_view call_name,
                  const std::string& reason);

  // Called when the features have ended: no call begins after this.
  void close() { closed_.store(true); }

 private:
  EventLog& events_;
  std::atomic<bool> closed_{false};
};

// ---- the features

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
