#include "analysis/warm_up.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace telens::analysis {

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

std::string describe_iterations(const WarmUp& warm_up) {
  constexpr std::size_t kMost = 4;
  struct Stretch {
    std::int64_t first = 0, last = 0;
  };
  std::vector<Stretch> stretches;
  const std::set<std::int64_t> iterations = warm_up.iterations();
  for (const std::int64_t iteration : iterations) {
    if (stretches.empty() || iteration > stretches.back().last + 1)
      stretches.emplace_back(iteration);
    stretches.back().last = iteration;
  }
  std::string text = iterations.size() == 1 ? "iteration " : "iterations ";
  for (std::size_t i = 0; i < std::min(kMost, stretches.size()); ++i) {
    const auto& [first, last] = stretches[i];
    text += fmt::format("{}{}", i == 0 ? "" : ", ", first);
    if (last > first) text += fmt::format(" to {}", last);
  }
  if (stretches.size() > kMost) text += fmt::format(" and {} more", stretches.size() - kMost);
  return text;
}

}  // namespace telens::analysis
