// How the ranks begin a session: all accept it or none does; they begin together, or each
// separately if one is missing; and with one configuration, or without comparing anything.
#pragma once

#include <functional>
#include <memory>

#include "hooks/config/config.h"
#include "hooks/session/event_log.h"
#include "hooks/session/reduction_groups.h"
#include "hooks/session_options.h"
#include "hooks/sink.h"

namespace telens::debug {

// The parts of a session that depend on how the ranks have met. If a rank runs separately, the
// world is removed from its options.
struct RankMeeting {
  InitializeOptions& options;
  const config::Config& config;  // `accept` loads it
  EventLog& events;
  ReductionGroups& groups;
  Sink& run_file;
};

// accept: throws if this rank refuses. Rethrows that exception; throws UsageError if another rank
// refuses. Returns an object that the session holds until its end, or null.
std::shared_ptr<void> meet_ranks(const RankMeeting& meeting, const std::function<void()>& accept);

}  // namespace telens::debug
