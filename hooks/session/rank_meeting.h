// How the ranks begin a session: all accept it, or none; together, or each alone where one is
// missing; and with one configuration, or without comparing anything.
#pragma once

#include <functional>
#include <memory>

#include "hooks/config/config.h"
#include "hooks/session/event_log.h"
#include "hooks/session/reduction_groups.h"
#include "hooks/session_options.h"
#include "hooks/sink.h"

namespace telens::debug {

// The parts of a session that learn how the ranks have met. The options of a rank that is alone
// lose their world.
struct RankMeeting {
  InitializeOptions& options;
  const config::Config& config;  // `accept` loads it
  EventLog& events;
  ReductionGroups& groups;
  Sink& run_file;
};

// accept: throws what this rank refuses. Throws the same, and UsageError where another refuses.
// Returns what the session holds until its end, or null.
std::shared_ptr<void> meet_ranks(const RankMeeting& meeting, const std::function<void()>& accept);

}  // namespace telens::debug
