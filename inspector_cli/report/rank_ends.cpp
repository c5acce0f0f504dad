#include "inspector_cli/report/rank_ends.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <string_view>
#include <tuple>

#include "features/record/file_status.h"
#include "inspector_cli/report/run_state.h"

namespace telens::cli {
namespace {

// Clocks of machines part by seconds, and a rank that loses another may close its file first.
constexpr double kMostBefore = 10;
// Collectives notice a rank that is gone at once, and launchers end the others within half a
// minute; what waits for a timeout ends after many minutes, for which there are other causes too.
constexpr double kMostBehind = 60;

using record::Segment;

// Words of errors that torch's and our own collectives raise where another rank is gone, in lower
// case.
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

bool speaks_of_collectives(std::string reason) {
  std::ranges::transform(reason, reason.begin(), [](unsigned char c) { return std::tolower(c); });
  return std::ranges::any_of(kWordsOfCollectives, [&](std::string_view words) {
    return reason.find(words) != std::string::npos;
  });
}

// Each rank's last event of the end by SIGTERM.
std::map<int, record::Event> find_terminations(const record::RunReader& run) {
  const auto& words = run.names(record::Dictionary::word);
  std::map<int, record::Event> last;
  for (const record::Event& event : run.events()) {
    const bool told = event.kind != record::kNoName && words[event.kind] == "terminated";
    if (told && !event.superseded) last[event.rank] = event;
  }
  return last;
}

EndKind get_kind(const record::RunEnd& end) {
  if (end.state == record::End::failed) return EndKind::recording;
  if (end.state != record::End::exception || end.reason.starts_with("KeyboardInterrupt"))
    return EndKind::unknown;
  return speaks_of_collectives(end.reason) ? EndKind::by_another : EndKind::error;
}

RankEnd make_end(const Segment& segment, const std::map<int, record::Event>& terminations) {
  RankEnd end{.segment = &segment};
  if (segment.end) {
    end.kind = get_kind(*segment.end);
    end.time = segment.end->time;
    return end;
  }
  end.time = record::time_of_change(segment.path);
  if (const auto found = terminations.find(segment.rank); found != terminations.end()) {
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

const Segment* find_first_clean(const record::RunReader& run) {
  const Segment* first = nullptr;
  for (const auto& [rank, segment] : last_segments(run)) {
    if (!segment->end || segment->end->state != record::End::clean) continue;
    if (first == nullptr || segment->end->time < first->end->time) first = segment;
  }
  return first;
}

// Errors of a rank's own count before what may be a launcher's doing.
const RankEnd* find_origin(const std::vector<RankEnd>& ends) {
  const RankEnd* error = find_first(ends, EndKind::error);
  return error != nullptr ? error : find_first(ends, EndKind::unknown);
}

// "; 2.1 s after that of rank 1, and likely its consequence"
std::string about_first(const RankEnd& end, const RankEnd& first) {
  const double later = end.time - first.time;
  const int rank = first.segment->rank;
  const bool is_error = first.kind == EndKind::error;
  if (later < (is_error ? -kMostBefore : 0)) return "";
  if (later > kMostBehind && !first.segment->end)
    return fmt::format("; that of rank {} was written last {:.1f} s before", rank, later);
  if (later > kMostBehind)
    return fmt::format("; rank {} ended first, {:.1f} s before", rank, later);
  if (later <= 0) return fmt::format("; likely a consequence of the end of rank {}", rank);
  return fmt::format("; {:.1f} s after that of rank {}, and likely its consequence", later, rank);
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

// The part of the list in which an end stands.
int get_part(const RankEnd& end, const RankEnd* error) {
  if (end.kind == EndKind::recording) return 3;
  if (error == nullptr) return 0;
  if (end.kind == EndKind::error) return 1;
  const bool came_before = end.kind == EndKind::by_another && end.time < error->time - kMostBefore;
  return came_before ? 0 : 2;
}

std::string describe_state(const RankEnd& end) {
  return end.terminated_in ? fmt::format("ended by SIGTERM in iteration {}", *end.terminated_in)
                           : get_state(*end.segment).text;
}

}  // namespace

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

std::vector<std::string> describe(const std::vector<RankEnd>& ends, const record::RunReader& run) {
  std::vector<std::string> texts;
  for (const RankEnd& end : ends) {
    texts.push_back(fmt::format("the recording of rank {}: {}{}{}", end.segment->rank,
                                describe_state(end), missing_rows(*end.segment),
                                about_origin(end, ends, run)));
  }
  return texts;
}

}  // namespace telens::cli
