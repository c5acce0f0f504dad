#include "analysis/events.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string_view>

#include "analysis/records.h"
#include "analysis/warm_up.h"
#include "core/base/text.h"

namespace telens::analysis {
namespace {

int get_place(std::string_view kind) {
  if (kind == "stopped") return 0;
  return kind == "warning" ? 2 : 1;
}

// Removes the "iteration 12: " that some sentences have after the name of their feature.
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

}  // namespace telens::analysis
