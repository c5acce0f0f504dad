// The events of a run, as a reader wants to see them.
#pragma once

#include <string>
#include <vector>

#include "record/run_reader.h"

namespace telens::analysis {

// An event with the ranks that say it alike.
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

// Returns its sentence, printable, with the name of its layer and without the iteration, which
// callers show separately.
std::string get_event_text(const record::Event& event, const record::RunReader& run);

}  // namespace telens::analysis
