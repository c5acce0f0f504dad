// Rows and warnings about collectives whose results differ from the sent data.
#include <fmt/format.h>

#include <map>
#include <utility>

#include "features/collective_check/collective_check.h"

namespace telens::features {
namespace {

constexpr std::string_view kWrong = "collectives_wrong";
constexpr std::string_view kLost = "nonfinite_lost";

struct Counts {
  double wrong = 0;
  double lost = 0;
};

void record(const JudgedCollectives& judged, FeatureServices& services) {
  std::map<CollectivePlace, Counts> counts;
  for (const CollectivePlace& place : judged.places) counts[place];
  for (const WrongCollective& each : judged.wrong) {
    counts[each.place].wrong += 1;
    counts[each.place].lost += static_cast<double>(each.lost);
  }
  for (const auto& [place, count] : counts) {
    for (const auto& [statistic, value] :
         {std::pair(kWrong, count.wrong), std::pair(kLost, count.lost)}) {
      services.record({.iteration = judged.iteration,
                       .series = &services.series().find_or_add(
                           {.layer = place.layer, .tensor = place.tensor, .statistic = statistic}),
                       .value = value});
    }
  }
}

}  // namespace

void report(const JudgedCollectives& judged, FeatureServices& services,
            std::set<std::string>& told) {
  record(judged, services);
  const WrongCollective* first = nullptr;
  std::size_t others = 0;
  for (const WrongCollective& each : judged.wrong) {
    const auto& [layer, tensor] = each.place;
    if (!told.insert(fmt::format("collective {} {}", layer, tensor)).second) continue;
    if (first == nullptr) {
      first = &each;
    } else {
      ++others;
    }
  }
  if (first == nullptr) return;
  services.announce(
      "collective_wrong",
      fmt::format("CollectiveCheck: iteration {}: {} {}: {}{}", judged.iteration,
                  first->place.layer, first->place.tensor, first->text,
                  others == 0 ? "" : fmt::format("; {} more are wrong from here on", others)),
      first->place.layer);
}

}  // namespace telens::features
