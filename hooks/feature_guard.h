// Stands between features that observe and the training, which they must not take down.
#pragma once

#include <ATen/core/grad_mode.h>

#include <atomic>
#include <string>
#include <string_view>

#include "core/base/interruption.h"
#include "hooks/event_log.h"
#include "hooks/layer_routing.h"

namespace telens::debug {

// "feature 'FakeQuant' of section 'first' in layer 'fc1', modify_tensor"
std::string context_of(const FeatureInstance& feature, std::string_view layer_name,
                       std::string_view call_name);

// A feature that throws in an observing call is switched off for the session, recorded, and warned
// about once. Interruptions pass.
class FeatureGuard {
 public:
  explicit FeatureGuard(EventLog& events) : events_(events) {}

  // Runs an observing call, unless the feature is off.
  template <typename Call>
  void observe(FeatureInstance& feature, std::string_view layer_name, std::string_view call_name,
               Call&& call) {
    if (!feature.observes.load(std::memory_order_relaxed) || closed_.load()) return;
    const at::NoGradGuard no_grad;
    try {
      call();
    } catch (...) {
      let_interruptions_pass();
      switch_off(feature, layer_name, call_name);
    }
  }

  // To be called while an exception is handled.
  void switch_off(FeatureInstance& feature, std::string_view layer_name,
                  std::string_view call_name);
  // The same for a reason of its own.
  void switch_off(FeatureInstance& feature, std::string_view layer_name, std::string_view call_name,
                  const std::string& reason);

  // The features have ended: no call begins from here on.
  void close() { closed_.store(true); }

 private:
  EventLog& events_;
  std::atomic<bool> closed_{false};
};

}  // namespace telens::debug
