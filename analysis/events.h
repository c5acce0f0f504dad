// The events of a run, and the warm-up that events report.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "record/run_reader.h"

namespace telens::analysis {

// An event and the ranks that report it.
struct ShownEvent {
  record::Event event;
  std::vector<int> ranks;
};

struct EventsOfKind {
  std::string kind;
  std::vector<ShownEvent> events;
};

// Groups events by kind: events that ended the run first, plain messages last. With `all`, each
// event is listed; otherwise equal events from several ranks are merged and warm-up is skipped.
std::vector<EventsOfKind> list_events(const record::RunReader& run, bool all);

// Returns the event's sentence, printable, with the name of its layer and without the iteration,
// which callers show separately.
std::string get_event_text(const record::Event& event, const record::RunReader& run);

// Warm-up: the first iterations of delayed scaling, in which a layer does not have an amax history
// and every scale is 1. The losses of its casts are not evidence about FP8. Empty for a run that
// was recorded before runs reported warm-up.
class WarmUp {
 public:
  explicit WarmUp(const record::RunReader& run);

  bool covers(std::int32_t layer, std::int64_t iteration) const;
  bool empty() const { return layers_.empty(); }
  std::size_t layers() const { return layers_.size(); }
  std::set<std::int64_t> iterations() const;  // of any layer

  // Kind of the event that reports warm-up.
  static constexpr std::string_view kKind = "warm_up";

 private:
  std::map<std::int32_t, std::set<std::int64_t>> layers_;
};

// Returns "iteration 0", "iterations 0 to 2", "iterations 0 to 2, 58": a resumed run has more than
// one.
std::string describe_iterations(const WarmUp& warm_up);

}  // namespace telens::analysis
