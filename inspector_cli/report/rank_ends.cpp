#include "inspector_cli/report/rank_ends.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>

#include "inspector_cli/report/run_state.h"

namespace telens::cli {
namespace {

using diagnosis::Ending;
using diagnosis::EndKind;
using diagnosis::kMostBefore;
using record::Segment;

// Seconds. Collectives notice a lost rank at once, and launchers end the others within half a
// minute. A rank that waits for a timeout ends after many minutes, which has other causes too.
constexpr double kMostBehind = 60;

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
  if (const RankEnd* origin = diagnosis::find_origin(ends)) return about_first(end, *origin);
  const Segment* clean = diagnosis::find_first_clean(run);
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

std::vector<std::string> describe(const std::vector<RankEnd>& ends, const record::RunReader& run) {
  std::vector<std::string> texts;
  for (const RankEnd& end : ends) {
    texts.push_back(fmt::format("the recording of rank {}: {}{}{}", end.segment->rank,
                                describe_state(end), missing_rows(*end.segment),
                                about_origin(end, ends, run)));
  }
  return texts;
}

std::string describe(const diagnosis::RunEnding& ending) {
  std::string text = fmt::format("The run {}", get_words(ending.ending));
  if (ending.rank) text += fmt::format(", first on rank {}", *ending.rank);
  if (ending.iteration) text += fmt::format(", in iteration {}", *ending.iteration);
  if (ending.time > 0) text += fmt::format(", {}", time_text(ending.time));
  if (!ending.reason.empty()) text += fmt::format(": {}", ending.reason);
  return text;
}

}  // namespace telens::cli
