// Isolates the training from failures of features that observe.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "hooks/session/event_log.h"
#include "hooks/session/layer_routing.h"
#include "hooks/tensor_ops.h"

namespace telens::debug {

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

}  // namespace telens::debug
