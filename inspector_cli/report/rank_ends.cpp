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

RankEnd make_end(const Segment& segment, const std::map<int, record::Event>& terminations) {
  RankEnd end{.segment = &segment};
  if (segment.end) {
    end.time = segment.end->time;
    end.may_be_consequence =
        segment.end->state == record::End::exception && speaks_of_collectives(segment.end->reason);
    return end;
  }
  end.time = record::time_of_change(segment.path);
  if (const auto found = terminations.find(segment.rank); found != terminations.end()) {
    end.time = found->second.time;
    end.terminated_in = found->second.iteration;
    end.may_be_consequence = true;
  }
  return end;
}

std::map<int, const Segment*> last_segments(const record::RunReader& run) {
  std::map<int, const Segment*> last;
  for (const Segment& segment : run.segments()) last[segment.rank] = &segment;
  return last;
}

// The end that may have brought the others about: the first by itself, else the first clean one.
struct Origin {
  int rank = 0;
  double time = 0;
  bool clean = false;
};

std::optional<Origin> find_origin(const std::vector<RankEnd>& ends, const record::RunReader& run) {
  if (ends.empty()) return std::nullopt;
  if (!ends.front().may_be_consequence)
    return Origin{ends.front().segment->rank, ends.front().time};
  std::optional<Origin> first;
  for (const auto& [rank, segment] : last_segments(run)) {
    if (!segment->end || segment->end->state != record::End::clean) continue;
    if (!first || segment->end->time < first->time) first = {rank, segment->end->time, true};
  }
  return first;
}

// "; 2.1 s after that of rank 1, and likely its consequence"
std::string about_origin(const RankEnd& end, const std::optional<Origin>& origin) {
  if (!origin || !end.may_be_consequence) return "";
  const double later = end.time - origin->time;
  if (origin->clean) {
    if (later <= 0) return "";
    return fmt::format(
        "; {:.1f} s after rank {} had ended cleanly, and likely a consequence: it left while "
        "others went on",
        later, origin->rank);
  }
  if (later <= 0) return fmt::format("; likely a consequence of the end of rank {}", origin->rank);
  return fmt::format("; {:.1f} s after that of rank {}, and likely its consequence", later,
                     origin->rank);
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
  std::ranges::stable_sort(
      ends, {}, [](const RankEnd& end) { return std::tuple(end.may_be_consequence, end.time); });
  return ends;
}

std::vector<std::string> describe(const std::vector<RankEnd>& ends, const record::RunReader& run) {
  const std::optional<Origin> origin = find_origin(ends, run);
  std::vector<std::string> texts;
  for (const RankEnd& end : ends) {
    texts.push_back(fmt::format("the recording of rank {}: {}{}{}", end.segment->rank,
                                describe_state(end), missing_rows(*end.segment),
                                about_origin(end, origin)));
  }
  return texts;
}

}  // namespace telens::cli
