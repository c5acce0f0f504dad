#include "analysis/rank_ends.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cmath>
#include <map>
#include <string_view>
#include <tuple>

#include "record/disk_space.h"

namespace telens::analysis {
namespace {

using record::Segment;

// Words in errors of collectives that lost another rank (torch and TELens). Lower case.
constexpr std::array<std::string_view, 14> kWordsOfCollectives{"connection closed",
                                                               "connection reset",
                                                               "connection refused",
                                                               "broken pipe",
                                                               "gloo",
                                                               "nccl",
                                                               "distbackenderror",
                                                               "distnetworkerror",
                                                               "diststoreerror",
                                                               "tcpstore",
                                                               "process group",
                                                               "timed out",
                                                               "timeout",
                                                               "socket"};

// Words in errors about exhausted memory (torch, Python and C++). Lower case.
constexpr std::array<std::string_view, 6> kWordsOfMemory{
    "outofmemory", "out of memory",         "memoryerror",
    "bad_alloc",   "can't allocate memory", "cannot allocate memory"};

template <std::size_t N>
bool has_any_of(std::string_view reason, const std::array<std::string_view, N>& words) {
  std::string text(reason);
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return std::ranges::any_of(
      words, [&](std::string_view each) { return text.find(each) != std::string::npos; });
}

bool is_interrupt(std::string_view reason) { return reason.starts_with("KeyboardInterrupt"); }

// Returns the last SIGTERM event of each rank.
std::map<int, record::Event> find_terminations(const record::RunReader& run) {
  const auto& words = run.names(record::Dictionary::word);
  std::map<int, record::Event> last;
  for (const record::Event& event : run.events()) {
    const bool is_sigterm = event.kind != record::kNoName && words[event.kind] == "terminated";
    if (is_sigterm && !event.superseded) last[event.rank] = event;
  }
  return last;
}

EndKind get_kind(const record::RunEnd& end) {
  if (end.state == record::End::failed) return EndKind::recording;
  if (end.state != record::End::exception || is_interrupt(end.reason)) return EndKind::unknown;
  return speaks_of_collectives(end.reason) ? EndKind::by_another : EndKind::error;
}

RankEnd make_end(const Segment& segment, const std::map<int, record::Event>& terminations) {
  RankEnd end{.segment = &segment};
  if (segment.end) {
    end.kind = get_kind(*segment.end);
    end.time = segment.end->time;
    return end;
  }
  end.time = record::modification_time(segment.path);
  const auto found = terminations.find(segment.rank);
  if (found != terminations.end() && found->second.time >= segment.start_time) {
    end.time = found->second.time;
    end.terminated_in = found->second.iteration;
    end.kind = EndKind::by_another;
  }
  return end;
}

std::map<int, const Segment*> last_segments(const record::RunReader& run) {
  std::map<int, const Segment*> last;
  for (const Segment& segment : run.segments()) last[segment.rank] = &segment;
  return last;
}

const RankEnd* find_first(const std::vector<RankEnd>& ends, EndKind kind) {
  const RankEnd* first = nullptr;
  for (const RankEnd& end : ends) {
    if (end.kind == kind && (first == nullptr || end.time < first->time)) first = &end;
  }
  return first;
}

// Returns the sort group of an end (see list_rank_ends).
int get_part(const RankEnd& end, const RankEnd* error) {
  if (end.kind == EndKind::recording) return 3;
  if (error == nullptr) return 0;
  if (end.kind == EndKind::error) return 1;
  const bool came_before = end.kind == EndKind::by_another && end.time < error->time - kMostBefore;
  return came_before ? 0 : 2;
}

Ending get_ending(const RankEnd& end) {
  if (end.terminated_in) return Ending::terminated;
  if (!end.segment->end) return Ending::killed;
  const auto& [time, state, reason] = *end.segment->end;
  if (state == record::End::failed) return Ending::recording_stopped;
  if (state != record::End::exception) return Ending::killed;
  if (is_interrupt(reason)) return Ending::terminated;
  return has_any_of(reason, kWordsOfMemory) ? Ending::out_of_memory : Ending::exception;
}

// Returns true if rank 0 ran on a machine with this machine's name.
bool ran_here(const record::RunReader& run) {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return false;
  return std::ranges::any_of(run.environment(), [&](const auto& entry) {
    return entry.first == "host" && entry.second == name.data();
  });
}

// Returns true if the file was created later than its recording started. Its original may still be
// written. Returns nullopt if the file system does not record creation times.
std::optional<bool> is_copy(const Segment& segment) {
  constexpr double kMostApart = 5;  // seconds from the file's creation to the recorded start
  const auto created = record::creation_time(segment.path);
  if (!created) return std::nullopt;
  return std::abs(*created - segment.start_time) >= kMostApart;
}

// Returns true if a free lock proves that the process that wrote the file has ended. This requires:
// - The process ran under this boot of the kernel, in a container or not.
// - The file system is local, so that its locks are visible to every process.
// - The file is the original.
bool proves_end(const Segment& segment) {
  if (segment.boot_id.empty() || segment.boot_id != record::get_boot_id()) return false;
  if (!record::is_on_local_file_system(segment.path)) return false;
  const auto copy = is_copy(segment);
  return copy && !*copy;
}

// Returns true if a file may still be written and no rank recorded its end. Originals that this
// host wrote are excluded: their free lock is sufficient on any file system.
bool may_continue(const std::vector<RankEnd>& ends, const record::RunReader& run) {
  const bool is_reported = std::ranges::any_of(ends, [](const RankEnd& each) {
    const auto& end = each.segment->end;
    return each.terminated_in || (end && end->state != record::End::failed);
  });
  return !is_reported && std::ranges::any_of(ends, [&](const RankEnd& each) {
    const std::string& boot_id = each.segment->boot_id;
    const bool is_this_host =
        ran_here(run) && (boot_id.empty() || boot_id == record::get_boot_id());
    const bool is_ended = is_this_host && !is_copy(*each.segment).value_or(false);
    return may_be_written(*each.segment) && !is_ended;
  });
}

double get_last_time(const record::RunReader& run) {
  double last = 0;
  for (const auto& [rank, segment] : last_segments(run)) {
    if (segment->end) last = std::max(last, segment->end->time);
  }
  return last;
}

// Returns the last iteration of the rank's records, scalars and events. Losses and norms are often
// recorded in iterations without tensor records.
std::optional<std::int64_t> get_last_iteration(const record::RunReader& run,
                                               const Segment& segment) {
  std::optional<std::int64_t> last;
  record::RecordQuery query;
  query.rank = segment.rank;
  if (segment.records > 0) {
    last = segment.last_iteration;
    query.first_iteration = segment.last_iteration + 1;
  }
  const auto extend = [&](std::int64_t iteration) {
    last = std::max(iteration, last.value_or(iteration));
  };
  for (const auto& scalar : run.rows<record::Scalar>(query)) extend(scalar.iteration);
  for (const auto& event : run.rows<record::Event>(query)) {
    if (!event.superseded && event.time >= segment.start_time) extend(event.iteration);
  }
  return last;
}

// Returns the size of the newest world. A rank of an older, larger world may no longer exist.
int get_newest_world(const record::RunReader& run) {
  const auto newest = std::ranges::max_element(run.segments(), {}, &Segment::start_time);
  return newest == run.segments().end() ? 0 : newest->world_size;
}

}  // namespace

bool ended_well(const record::Segment& segment) {
  return segment.live || (segment.end && segment.end->state == record::End::clean);
}

bool may_be_written(const record::Segment& segment) {
  constexpr double kRecent = 300;  // seconds
  if (segment.end || proves_end(segment)) return false;
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return std::abs(now.count() - record::modification_time(segment.path)) < kRecent;
}

bool speaks_of_collectives(std::string_view reason) {
  return has_any_of(reason, kWordsOfCollectives);
}

const record::Segment* find_first_clean(const record::RunReader& run) {
  const Segment* first = nullptr;
  for (const auto& [rank, segment] : last_segments(run)) {
    if (!segment->end || segment->end->state != record::End::clean) continue;
    if (first == nullptr || segment->end->time < first->end->time) first = segment;
  }
  return first;
}

// An error that a rank raised comes before an end that a launcher may have caused.
const RankEnd* find_origin(const std::vector<RankEnd>& ends) {
  const RankEnd* error = find_first(ends, EndKind::error);
  return error != nullptr ? error : find_first(ends, EndKind::unknown);
}

std::vector<RankEnd> list_rank_ends(const record::RunReader& run) {
  const std::map<int, record::Event> terminations = find_terminations(run);
  std::vector<RankEnd> ends;
  for (const auto& [rank, segment] : last_segments(run)) {
    if (!ended_well(*segment)) ends.push_back(make_end(*segment, terminations));
  }
  const RankEnd* first = find_first(ends, EndKind::error);
  const auto error = first != nullptr ? std::optional(*first) : std::nullopt;  // sorting moves it
  std::ranges::stable_sort(ends, {}, [&](const RankEnd& end) {
    return std::tuple(get_part(end, error ? &*error : nullptr), end.time);
  });
  return ends;
}

std::string_view get_name(Ending ending) {
  constexpr std::array<std::string_view, 7> kNames{
      "finished", "still_being_written", "recording_stopped", "exception", "out_of_memory",
      "killed",   "terminated"};
  return kNames.at(static_cast<std::size_t>(ending));
}

RunEnding find_ending(const record::RunReader& run) {
  if (std::ranges::any_of(run.segments(), &Segment::live)) {
    return {.ending = Ending::still_being_written};
  }
  const int world = get_newest_world(run);
  std::vector<RankEnd> ends = list_rank_ends(run);
  std::erase_if(ends, [&](const RankEnd& end) { return end.segment->world_size != world; });
  if (ends.empty()) return {.time = get_last_time(run)};
  const RankEnd& end = ends.front();
  const Segment& segment = *end.segment;
  if (may_continue(ends, run)) return {.ending = Ending::still_being_written};
  RunEnding ending{.ending = get_ending(end), .iteration = end.terminated_in, .time = end.time};
  if (world > 1) ending.rank = segment.rank;
  if (!ending.iteration) ending.iteration = get_last_iteration(run, segment);
  if (segment.end) ending.reason = segment.end->reason;
  return ending;
}

}  // namespace telens::analysis
