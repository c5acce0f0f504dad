#include "hooks/session/left_out_layers.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace telens::debug {

void LeftOutLayers::note(const LayerRouting& routing) {
  const std::lock_guard lock(mutex_);
  layers_.emplace(routing.layer_name(), routing.has_trained());
}

void LeftOutLayers::warn(EventLog& events) {
  std::vector<std::string> names;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, has_trained] : layers_) {
      if (!*has_trained) names.push_back(name);
    }
    layers_.clear();
  }
  if (names.empty() || std::exchange(warned_, true)) return;
  events.message(
      fmt::format(
          "layer '{}'{} has run in eval mode alone, which sections leave out unless they say "
          "otherwise; write 'mode: both' (or 'mode: eval') into the section to record "
          "evaluations, or call model.train() if it is a training",
          names.front(), names.size() > 1 ? fmt::format(", as {} more,", names.size() - 1) : ""),
      {}, LogLevel::warning);
}

}  // namespace telens::debug
