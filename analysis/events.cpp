#include "analysis/events.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "analysis/series.h"
#include "core/base/text.h"

namespace telens::analysis {
namespace {

int get_place(std::string_view kind) {
  if (kind == "stopped") return 0;
  return kind == "warning" ? 2 : 1;
}

// Removes "iteration 12: ", which some sentences contain after the name of their feature.
std::string without_iteration(std::string text, std::int64_t iteration) {
  const std::string words = fmt::format("iteration {}: ", iteration);
  const std::size_t at = text.find(words);
  if (at == 0 || (at != std::string::npos && text[at - 1] == ' ')) text.erase(at, words.size());
  return text;
}

}  // namespace

std::vector<EventsOfKind> list_events(const record::RunReader& run, bool all) {
  const auto& words = run.names(record::Dictionary::word);
  std::vector<EventsOfKind> kinds;
  std::map<std::array<std::int64_t, 4>, std::size_t> places;  // in the list of their kind
  for (const record::Event& event : run.events()) {
    const std::string& kind = words[event.kind];
    if (!all && kind == WarmUp::kKind) continue;
    auto known = std::ranges::find(kinds, kind, &EventsOfKind::kind);
    if (known == kinds.end()) known = kinds.insert(known, {kind, {}});
    auto& events = known->events;
    const auto [place, is_new] =
        places.try_emplace({event.iteration, event.kind, event.text, event.layer}, events.size());
    if (all || is_new) {
      events.push_back({event, {event.rank}});
    } else if (auto& ranks = events[place->second].ranks; ranks.back() != event.rank) {
      ranks.push_back(event.rank);
    }
  }
  std::ranges::stable_sort(kinds, {}, [](const auto& each) { return get_place(each.kind); });
  return kinds;
}

std::string get_event_text(const record::Event& event, const record::RunReader& run) {
  const std::string text =
      without_iteration(run.names(record::Dictionary::word)[event.text], event.iteration);
  const std::string layer = name_or_empty(run, record::Dictionary::layer, event.layer);
  const bool named = layer.empty() || text.find(layer) != std::string::npos;
  return named ? printable(text) : fmt::format("{}: {}", printable(layer), printable(text));
}

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
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;  // first and last iteration
  const std::set<std::int64_t> iterations = warm_up.iterations();
  for (const std::int64_t iteration : iterations) {
    if (ranges.empty() || iteration > ranges.back().second + 1)
      ranges.emplace_back(iteration, iteration);
    ranges.back().second = iteration;
  }
  std::string text = iterations.size() == 1 ? "iteration " : "iterations ";
  for (std::size_t i = 0; i < std::min(kMost, ranges.size()); ++i) {
    const auto& [first, last] = ranges[i];
    text += fmt::format("{}{}", i == 0 ? "" : ", ", first);
    if (last > first) text += fmt::format(" to {}", last);
  }
  if (ranges.size() > kMost) text += fmt::format(" and {} more", ranges.size() - kMost);
  return text;
}

}  // namespace telens::analysis
