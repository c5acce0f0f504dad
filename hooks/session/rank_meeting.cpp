#include "hooks/session/rank_meeting.h"

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include "hooks/rendezvous.h"
#include "hooks/session/start_options.h"

namespace telens::debug {
namespace {

void go_on_alone(const RankMeeting& meeting, const Attendance& attendance) {
  InitializeOptions& options = meeting.options;
  const std::vector<int>& missing = attendance.missing;
  // A rank that came late also reports it.
  const bool is_late = std::ranges::find(missing, options.rank) != missing.end();
  meeting.events.let_lead(is_late || options.rank == attendance.first);
  meeting.events.message_of_run(attendance.explanation, LogLevel::error);
  options.world = nullptr;
  if (!attendance.run_id.empty()) options.run_id = attendance.run_id;
}

// Ranks that watch different things would reduce, and wait for, different things.
void compare_ranks(const RankMeeting& meeting, bool all_have_come) {
  const std::string difference = difference_of_ranks(meeting.options, meeting.config);
  meeting.groups.begin(meeting.options.world, all_have_come && difference.empty());
  for (const std::string& text : meeting.config.warnings()) {
    // Another rank with another configuration may not have one.
    if (difference.empty()) {
      meeting.events.message_of_run(text, LogLevel::warning);
    } else {
      meeting.events.message(text, {}, LogLevel::warning);
    }
  }
  if (!difference.empty()) meeting.events.message_of_run(difference, LogLevel::warning);
}

}  // namespace

std::shared_ptr<void> meet_ranks(const RankMeeting& meeting, const std::function<void()>& accept) {
  EventLog& events = meeting.events;
  events.let_lead(meeting.options.rank == 0);
  Attendance attendance;
  try {
    attendance = join_rendezvous(
        meeting.options.world,
        {.accept = accept,
         .on_wait = [&](const auto& text) { events.message(text, {}, LogLevel::warning); },
         .name_run = [&] { return meeting.run_file.name_run(meeting.options); },
         .check_interrupt = meeting.options.check_interrupt});
  } catch (const std::exception&) {
    for (const std::string& text : meeting.config.warnings()) {
      events.message_of_run(text, LogLevel::warning);
    }
    throw;
  }
  if (!attendance.is_complete) go_on_alone(meeting, attendance);
  compare_ranks(meeting, attendance.is_complete);
  return attendance.presence;
}

}  // namespace telens::debug
