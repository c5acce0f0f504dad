#include "hooks/feature_guard.h"

#include <fmt/format.h>

#include "hooks/feature_failure.h"

namespace telens::debug {

std::string context_of(const FeatureInstance& feature, std::string_view layer_name,
                       std::string_view call_name) {
  return fmt::format("{} in layer '{}', {}", feature.title(), layer_name, call_name);
}

void FeatureGuard::switch_off(FeatureInstance& feature, std::string_view layer_name,
                              std::string_view call_name) {
  switch_off(feature, layer_name, call_name, message_of_current_exception());
}

void FeatureGuard::switch_off(FeatureInstance& feature, std::string_view layer_name,
                              std::string_view call_name, const std::string& reason) {
  if (!feature.observes.exchange(false)) return;
  events_.announce(
      "feature_off",
      fmt::format("{}: {}; it is switched off for the rest of the session, training goes on",
                  context_of(feature, layer_name, call_name), reason),
      layer_name);
}

}  // namespace telens::debug
