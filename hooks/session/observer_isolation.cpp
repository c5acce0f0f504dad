#include "hooks/session/observer_isolation.h"

#include <fmt/format.h>

#include "hooks/feature_failure.h"

namespace telens::debug {

std::string make_context(const FeatureInstance& feature, std::string_view layer_name,
                         std::string_view call_name) {
  return fmt::format("{} in layer '{}', {}", feature.title(), layer_name, call_name);
}

void ObserverIsolation::observe_tensors(FeatureInstance& feature, const Shown& shown,
                                        const Show& show, const std::function<void()>& call) {
  const auto& [layer_name, call_name, device] = shown;
  if (!feature.observes.load(std::memory_order_relaxed)) return;
  if (!feature.is_foreign() || !device) return observe(feature, layer_name, call_name, call);
  RandomState random(device);
  bool was_written = false;
  {
    MutationGuard guard;
    show(guard);
    observe(feature, layer_name, call_name, call);
    was_written = guard.was_written();
  }
  if (random.restore()) tell_of_randomness(feature, layer_name, call_name);
  if (!was_written) return;
  switch_off(
      feature, layer_name, call_name,
      "it wrote to a tensor that it may only read; the old values are lost, and the training "
      "continues with the new ones; work on a copy (tensor.clone())");
}

void ObserverIsolation::tell_of_randomness(FeatureInstance& feature, std::string_view layer_name,
                                           std::string_view call_name) {
  if (feature.told_of_randomness.exchange(true)) return;
  events_.announce(
      "feature_random",
      fmt::format("{}: it drew from torch's random number generator, whose state is restored each "
                  "time; use a separate torch.Generator in the feature",
                  make_context(feature, layer_name, call_name)),
      layer_name);
}

void ObserverIsolation::switch_off(FeatureInstance& feature, std::string_view layer_name,
                                   std::string_view call_name) {
  switch_off(feature, layer_name, call_name, message_of_current_exception());
}

void ObserverIsolation::switch_off(FeatureInstance& feature, std::string_view layer_name,
                                   std::string_view call_name, const std::string& reason) {
  if (!feature.observes.exchange(false)) return;
  events_.announce(
      "feature_off",
      fmt::format("{}: {}; it is disabled for the rest of the session, and the training continues",
                  make_context(feature, layer_name, call_name), reason),
      layer_name);
}

}  // namespace telens::debug
