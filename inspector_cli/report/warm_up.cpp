#include "inspector_cli/report/warm_up.h"

namespace telens::cli {

WarmUp::WarmUp(const record::RunReader& run) {
  const auto& words = run.names(record::Dictionary::word);
  for (const record::Event& event : run.events()) {
    if (event.layer == record::kNoName || event.superseded || words[event.kind] != kKind) continue;
    layers_[event.layer].insert(event.iteration);
  }
}

std::set<std::int64_t> WarmUp::iterations() const {
  std::set<std::int64_t> all;
  for (const auto& [layer, iterations] : layers_) all.insert(iterations.begin(), iterations.end());
  return all;
}

bool WarmUp::covers(std::int32_t layer, std::int64_t iteration) const {
  const auto found = layers_.find(layer);
  return found != layers_.end() && found->second.contains(iteration);
}

}  // namespace telens::cli
