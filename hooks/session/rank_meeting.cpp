#include "hooks/session/rank_meeting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/fnv1a.h"
#include "core/base/text.h"
#include "hooks/config/yaml_reader.h"
#include "hooks/rendezvous.h"
#include "record/rows/tables.h"

namespace telens::debug {
namespace {

// Formats a line "<digest> <name>" for each section that is not disabled.
std::string parse_digests(std::string_view text) {
  config::ErrorList errors;  // it was loaded before
  const config::Value root = config::read_yaml(text, "config", errors);
  std::string lines;
  if (!root.is_map()) return lines;
  for (const config::MapEntry& section : root.as_map()) {
    const config::Value* enabled = section.value.find("enabled");
    if (enabled != nullptr && enabled->is_bool() && !enabled->as_bool()) continue;
    lines += fmt::format("{:016x} {}\n", fnv1a(config::to_json(section.value)), section.key);
  }
  return lines;
}

// Maps the names of the sections to a rank's digests.
std::map<std::string, std::string> by_section(std::string_view lines) {
  std::map<std::string, std::string> digests;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    const std::size_t space = line.find(' ');
    digests.emplace(line.substr(space + 1), line.substr(0, space));
    lines.remove_prefix(line.size() + 1);
  }
  return digests;
}

// Names the sections of the configuration that differ from the sections of rank 0, with their
// ranks; "" if all ranks of the world have the same. Every rank has to call this.
std::string different_sections(const std::string& config_text, const RankGroupPtr& world) {
  if (!has_several_ranks(world)) return "";
  const std::string own = parse_digests(config_text);
  const auto hashes = gather_notes(static_cast<std::int64_t>(fnv1a(own)), *world);
  if (std::ranges::all_of(hashes, [&](auto hash) { return hash == hashes.front(); })) return "";
  std::vector<std::map<std::string, std::string>> of_ranks;
  for (const std::string& lines : gather_texts(own, *world)) {
    of_ranks.push_back(by_section(lines));
  }
  std::map<std::string, std::vector<int>> different;  // sections that differ from rank 0
  for (std::size_t rank = 1; rank < of_ranks.size(); ++rank) {
    const int number = static_cast<int>(rank);
    const auto note = [&](const auto& sections, const auto& others) {
      for (const auto& [name, digest] : sections) {
        const auto found = others.find(name);
        if (found != others.end() && found->second == digest) continue;
        auto& ranks = different[name];
        if (ranks.empty() || ranks.back() != number) ranks.push_back(number);
      }
    };
    note(of_ranks[rank], of_ranks[0]);
    note(of_ranks[0], of_ranks[rank]);
  }
  std::vector<std::string> sections;
  for (const auto& [name, ranks] : different) {
    sections.push_back(fmt::format("section '{}' of {}", name, describe_ranks(ranks)));
  }
  return fmt::format("{}", fmt::join(sections, ", "));
}

// Returns a sentence for the user if the ranks of the world have different configurations, else "".
// Every rank of the world has to call this.
std::string difference_of_ranks(const InitializeOptions& options, const config::Config& config) {
  const std::string different = different_sections(config.text(), options.world);
  if (different.empty()) return "";
  return fmt::format(
      "{}, {} differing from rank 0; nothing is reduced over ranks, each records its own values; "
      "give all ranks the same configuration",
      record::kDifferentConfigurations, different);
}

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
