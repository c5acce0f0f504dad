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

// Kind by kind: what ended the run first, plain messages last. With `all` each event by itself,
// else once what ranks say alike, and none of warm-up.
std::vector<EventsOfKind> list_events(const record::RunReader& run, bool all);

// Its sentence, printable, with the layer that it is about, and without the iteration, for which
// readers have a place of its own.
std::string get_event_text(const record::Event& event, const record::RunReader& run);

}  // namespace telens::analysis
