// Stands between features that observe and the training, which they must not take down.
#pragma once

#include <ATen/core/grad_mode.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "hooks/session/event_log.h"
#include "hooks/session/layer_routing.h"
#include "hooks/untouched.h"

namespace telens::debug {

// "feature 'FakeQuant' of section 'first' in layer 'fc1', modify_tensor"
std::string make_context(const FeatureInstance& feature, std::string_view layer_name,
                         std::string_view call_name);

// A feature that throws in an observing call is switched off for the session, recorded, and warned
// about once. Interruptions pass.
class ObserverIsolation {
 public:
  explicit ObserverIsolation(EventLog& events) : events_(events) {}

  // Runs an observing call, unless the feature is off.
  template <typename Call>
  void observe(FeatureInstance& feature, std::string_view layer_name, std::string_view call_name,
               Call&& call) {
    if (!feature.observes.load(std::memory_order_relaxed) || closed_.load()) return;
    const at::NoGradGuard no_grad;
    try {
      call();
    } catch (...) {
      rethrow_interruption();
      switch_off(feature, layer_name, call_name);
    }
  }

  // The same for a call that is shown tensors. Foreign code that writes to what `show` names is
  // switched off, and the random numbers that it draws are put back.
  struct Shown {
    std::string_view layer_name;
    std::string_view call_name;
    std::optional<at::Device> device;  // nullopt: of a graph that is captured, nothing is checked
  };
  using Show = std::function<void(Unwritten& tensors)>;
  void observe_tensors(FeatureInstance& feature, const Shown& shown, const Show& show,
                       const std::function<void()>& call);
  // Warns once that a feature draws torch's random numbers.
  void tell_of_randomness(FeatureInstance& feature, std::string_view layer_name,
                          std::string_view call_name);

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
