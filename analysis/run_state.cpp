#include "analysis/run_state.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "record/disk_space.h"
#include "record/rows/tables.h"
#include "record/run_paths.h"

namespace telens::analysis {
namespace {

using record::Segment;

constexpr std::size_t kMostNotes = 4;

// The last change that a section's budget made; empty if features run in all iterations after it.
std::string budget_note(const record::RunReader& run) {
  const auto& words = run.names(record::Dictionary::word);
  std::string last;
  for (const record::Event& event : run.events()) {
    if (event.kind == record::kNoName || words[event.kind] != "budget" || event.superseded)
      continue;
    if (event.text != record::kNoName) last = words[event.text];
  }
  const std::string of_all = record::describe_share(record::kAllIterations);
  if (last.empty() || last.find(of_all) != std::string::npos) return "";
  return last +
         ". Iterations in between were not recorded; to record all, remove `budget` from the "
         "configuration or set TELENS_BUDGET=off";
}

// Returns since when ranks could no longer be compared, or "" if they always could.
std::string comparison_note(const record::RunReader& run) {
  const auto& words = run.names(record::Dictionary::word);
  std::set<int> ranks;
  std::optional<record::Event> first;
  for (const record::Event& event : run.events()) {
    const bool ended = event.kind != record::kNoName && words[event.kind] == "ranks_not_compared";
    if (!ended || event.superseded) continue;
    ranks.insert(event.rank);
    if (!first || event.iteration < first->iteration) first = event;
  }
  if (!first) return "";
  std::string why = first->text == record::kNoName ? "" : words[first->text];
  why = why.substr(0, why.find(record::kNotComparedAnymore));
  const std::vector<int> compared_no_more(ranks.begin(), ranks.end());
  return fmt::format(
      "from iteration {} on, {} {} not compared with other ranks, so differences between ranks are "
      "not detected: {}",
      first->iteration, describe_ranks(compared_no_more), ranks.size() == 1 ? "was" : "were", why);
}

// Seconds within which an end counts as a consequence. Collectives fail soon after a rank is lost,
// and launchers end the other ranks within half a minute. A rank that waits for a timeout ends many
// minutes later, when other causes are possible.
constexpr double kMostBehind = 60;

// Returns "; 2.1 s after rank 1 ended, and likely a consequence" or a similar clause.
std::string about_first(const RankEnd& end, const RankEnd& first) {
  const double later = end.time - first.time;
  const int rank = first.segment->rank;
  const bool is_error = first.kind == EndKind::error;
  if (later < (is_error ? -kMostBefore : 0)) return "";
  if (later > kMostBehind && !first.segment->end)
    return fmt::format("; the file of rank {} was last written {:.1f} s earlier", rank, later);
  if (later > kMostBehind)
    return fmt::format("; rank {} ended first, {:.1f} s before", rank, later);
  if (later <= 0) return fmt::format("; likely a consequence of the end of rank {}", rank);
  return fmt::format("; {:.1f} s after the end of rank {}, and likely a consequence", later, rank);
}

std::string about_clean(const RankEnd& end, const Segment& clean) {
  const double later = end.time - clean.end->time;
  if (later <= 0 || later > kMostBehind) return "";
  return fmt::format(
      "; {:.1f} s after rank {} had ended cleanly, and likely a consequence: it left while others "
      "went on",
      later, clean.rank);
}

std::string about_origin(const RankEnd& end, const std::vector<RankEnd>& ends,
                         const record::RunReader& run) {
  if (end.kind != EndKind::by_another) return "";
  if (const RankEnd* origin = find_origin(ends)) return about_first(end, *origin);
  const Segment* clean = find_first_clean(run);
  return clean != nullptr ? about_clean(end, *clean) : "";
}

std::string describe_state(const RankEnd& end) {
  return end.terminated_in ? fmt::format("ended by SIGTERM in iteration {}", *end.terminated_in)
                           : get_state(*end.segment).text;
}

std::string_view get_words(Ending ending) {
  switch (ending) {
    case Ending::finished:
      return "finished";
    case Ending::still_being_written:
      return "is still being written";
    case Ending::recording_stopped:
      return "stopped being recorded";
    case Ending::exception:
      return "ended with an exception";
    case Ending::out_of_memory:
      return "ended out of memory (OOM)";
    case Ending::killed:
      return "was killed: its file was not closed";
    case Ending::terminated:
      break;
  }
  return "was terminated";
}

}  // namespace

std::string missing_rows(const record::Segment& segment) {
  std::string text;
  if (segment.lost > 0) text += fmt::format("; {} rows are lost", segment.lost);
  if (segment.dropped > 0) text += fmt::format("; {} rows were dropped", segment.dropped);
  return text;
}

std::string time_text(double seconds) {
  constexpr double kYear10000 = 253402300800;
  if (!(seconds >= 0 && seconds < kYear10000)) return "at an unknown time";
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(static_cast<std::time_t>(seconds)));
}

RunState get_state(const record::Segment& segment) {
  if (!segment.end) {
    if (segment.live) return {"being written", Condition::live};
    return {fmt::format("not closed (killed?), written last {}; {}",
                        time_text(record::modification_time(segment.path)),
                        may_be_written(segment) ? "a process on another machine may still write it"
                                                : "`telens repair` closes it"),
            Condition::warning};
  }
  const record::RunEnd& end = *segment.end;
  switch (end.state) {
    case record::End::clean:
      return {"ended cleanly " + time_text(end.time)};
    case record::End::killed:
      return {"killed, repaired; written last " + time_text(end.time), Condition::warning};
    case record::End::exception:
      return {fmt::format("ended by an exception {}: {}", time_text(end.time), end.reason),
              Condition::failed};
    case record::End::failed:
      break;
  }
  return {fmt::format("recording stopped {}: {}", time_text(end.time), end.reason),
          Condition::failed};
}

RunState get_state(const record::RunReader& run) {
  const auto& segments = run.segments();
  if (segments.empty()) return {};
  const auto live = std::ranges::find_if(segments, &record::Segment::live);
  return get_state(live == segments.end() ? segments.back() : *live);
}

std::vector<std::string> recording_notes(const record::RunReader& run) {
  std::vector<std::string> notes = describe(list_rank_ends(run), run);
  std::map<int, const record::Segment*> last;
  for (const record::Segment& segment : run.segments()) last[segment.rank] = &segment;
  for (const auto& [rank, segment] : last) {
    if (!ended_well(*segment) || missing_rows(*segment).empty()) continue;
    notes.push_back(fmt::format("the recording of rank {}: {}{}", rank, get_state(*segment).text,
                                missing_rows(*segment)));
  }
  if (notes.size() > kMostNotes) {
    const std::size_t more = notes.size() - kMostNotes;
    notes.resize(kMostNotes);
    notes.push_back(fmt::format("and of {} more rank{}", more, more == 1 ? "" : "s"));
  }
  std::ranges::move(missing_rank_notes(run), std::back_inserter(notes));
  for (std::string note : {comparison_note(run), budget_note(run)}) {
    if (!note.empty()) notes.push_back(std::move(note));
  }
  return notes;
}

std::vector<std::string> describe(const std::vector<RankEnd>& ends, const record::RunReader& run) {
  std::vector<std::string> texts;
  for (const RankEnd& end : ends) {
    texts.push_back(fmt::format("the recording of rank {}: {}{}{}", end.segment->rank,
                                describe_state(end), missing_rows(*end.segment),
                                about_origin(end, ends, run)));
  }
  return texts;
}

std::string describe(const RunEnding& ending) {
  std::string text = fmt::format("The run {}", get_words(ending.ending));
  if (ending.rank) text += fmt::format(", first on rank {}", *ending.rank);
  if (ending.iteration) text += fmt::format(", in iteration {}", *ending.iteration);
  if (ending.time > 0) text += fmt::format(", {}", time_text(ending.time));
  if (!ending.reason.empty()) text += fmt::format(": {}", ending.reason);
  return text;
}

namespace {

using record::Event;

// Returns all ranks in the run's folder, including those whose files were not requested or cannot
// be read.
std::set<int> list_ranks(const record::RunReader& run) {
  std::set<int> ranks;
  std::set<std::string> folders;
  for (const record::Segment& segment : run.segments()) {
    ranks.insert(segment.rank);
    folders.insert(std::filesystem::path(segment.path).parent_path().string());
  }
  for (const std::string& folder : folders) {
    try {
      for (const record::SegmentFile& file : record::segments_in(folder.empty() ? "." : folder))
        ranks.insert(file.rank);
    } catch (const RecordError&) {  // the folder was deleted
    }
  }
  return ranks;
}

int get_world_size(const record::RunReader& run) {
  int size = 1;
  for (const record::Segment& segment : run.segments()) size = std::max(size, segment.world_size);
  return size;
}

bool has_live_file(const record::RunReader& run) {
  return std::ranges::any_of(run.segments(), &record::Segment::live);
}

std::vector<int> list_absent_ranks(const record::RunReader& run) {
  // A damaged file may contain any world size. A sentence names at most eight ranks anyway.
  constexpr int kMostRanks = 1 << 20;
  const std::set<int> ranks = list_ranks(run);
  std::vector<int> absent;
  for (int rank = 0; rank < std::min(get_world_size(run), kMostRanks); ++rank) {
    if (!ranks.contains(rank)) absent.push_back(rank);
  }
  return absent;
}

struct Warning {
  Event event;                             // the first one; other ranks have the same warning
  std::optional<std::int64_t> until = {};  // the resume after which no rank has warned again
};

// Returns the iteration at which a later process resumed the run.
std::optional<std::int64_t> find_resume_behind(const Event& warning, const record::RunReader& run) {
  std::optional<std::int64_t> resume;
  for (const record::Segment& segment : run.segments()) {
    if (segment.rank != warning.rank || segment.continues || segment.records == 0) continue;
    if (segment.start_time <= warning.time || segment.first_iteration <= warning.iteration)
      continue;
    resume = std::min(resume.value_or(segment.first_iteration), segment.first_iteration);
  }
  return resume;
}

// Returns the first warning whose text contains the words.
std::optional<Warning> find_warning(const record::RunReader& run, std::string_view words) {
  const auto& texts = run.names(record::Dictionary::word);
  std::optional<Event> first;
  std::optional<Event> last;
  for (const Event& event : run.events()) {
    const bool is_warning = event.kind != record::kNoName && texts[event.kind] == "warning";
    if (!is_warning || event.superseded || event.text == record::kNoName) continue;
    if (texts[event.text].find(words) == std::string::npos) continue;
    if (!first || event.iteration < first->iteration) first = event;
    if (!last || event.time > last->time) last = event;
  }
  if (!first) return std::nullopt;
  return Warning{*first, find_resume_behind(*last, run)};
}

std::string get_text(const Warning& warning, const record::RunReader& run) {
  const std::string& text = run.names(record::Dictionary::word)[warning.event.text];
  if (!warning.until) return fmt::format("since iteration {}: {}", warning.event.iteration, text);
  return fmt::format("from iteration {} until the resume at iteration {}: {}",
                     warning.event.iteration, *warning.until, text);
}

bool is_in_force(const std::optional<Warning>& warning) { return warning && !warning->until; }

std::string absence_note(const std::vector<int>& absent, const record::RunReader& run) {
  return fmt::format(
      "{} of {} {} no file in this run{}, so nothing is known about {}: debug.initialize was "
      "not called there, the process ended before it, or its log_dir is another machine's; call "
      "it on every rank, with a log_dir that all of them share",
      describe_ranks(absent), get_world_size(run), absent.size() == 1 ? "has" : "have",
      has_live_file(run) ? " (yet)" : "", absent.size() == 1 ? "it" : "they");
}

}  // namespace

std::vector<std::string> missing_rank_notes(const record::RunReader& run) {
  std::vector<std::string> notes;
  if (const auto late = find_warning(run, record::kMissingAfter)) {
    notes.push_back(get_text(*late, run));
  }
  if (const std::vector<int> absent = list_absent_ranks(run); !absent.empty()) {
    notes.push_back(absence_note(absent, run));
  }
  if (const auto unlike = find_warning(run, record::kDifferentConfigurations)) {
    notes.push_back(get_text(*unlike, run));
  }
  return notes;
}

std::string why_not_compared(const record::RunReader& run) {
  if (is_in_force(find_warning(run, record::kMissingAfter))) {
    return "a rank had no session when the other ranks started, so each rank recorded separately";
  }
  if (is_in_force(find_warning(run, record::kDifferentConfigurations))) {
    return "the ranks ran under different configurations";
  }
  std::set<int> ranks;
  for (const record::Segment& segment : run.segments()) ranks.insert(segment.rank);
  const int world = get_world_size(run);
  if (world > 1 && ranks.size() == 1) {
    return fmt::format("only rank {1} of {0} ranks was read", world, *ranks.begin());
  }
  return "";
}

}  // namespace telens::analysis
