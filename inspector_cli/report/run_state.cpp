#include "inspector_cli/report/run_state.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "analysis/rank_coverage.h"
#include "core/base/rank_words.h"
#include "inspector_cli/report/rank_ends.h"
#include "record/file_status.h"
#include "record/rows/event_texts.h"

namespace telens::cli {
namespace {

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
  const std::string of_all = record::run_in_words(record::kAllIterations);
  if (last.empty() || last.find(of_all) != std::string::npos) return "";
  return last +
         ". Iterations in between were not recorded; to record all, remove `budget` from the "
         "configuration or set TELENS_BUDGET=off";
}

// How far ranks were compared, where one did not come; empty: as far as they went.
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
  why = why.substr(0, why.find(record::kComparedNoMore));
  const std::vector<int> compared_no_more(ranks.begin(), ranks.end());
  return fmt::format(
      "from iteration {} on {} {} compared with no other, so what differs between ranks from there "
      "on is not seen: {}",
      first->iteration, ranks_in_words(compared_no_more), ranks.size() == 1 ? "was" : "were", why);
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
    if (segment.live) return {"being written", Color::green};
    return {fmt::format("not closed (killed?), written last {}; {}",
                        time_text(record::time_of_change(segment.path)),
                        diagnosis::may_be_written(segment)
                            ? "a process on another machine may still write it"
                            : "`telens repair` closes it"),
            Color::yellow};
  }
  const record::RunEnd& end = *segment.end;
  switch (end.state) {
    case record::End::clean:
      return {"ended cleanly " + time_text(end.time)};
    case record::End::killed:
      return {"killed, repaired; written last " + time_text(end.time), Color::yellow};
    case record::End::exception:
      return {fmt::format("ended by an exception {}: {}", time_text(end.time), end.reason),
              Color::red};
    case record::End::failed:
      break;
  }
  return {fmt::format("recording stopped {}: {}", time_text(end.time), end.reason), Color::red};
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
  std::ranges::move(diagnosis::missing_rank_notes(run), std::back_inserter(notes));
  for (std::string note : {comparison_note(run), budget_note(run)}) {
    if (!note.empty()) notes.push_back(std::move(note));
  }
  return notes;
}

std::string state_text(const record::Segment& segment) {
  const RunState state = get_state(segment);
  return state.color ? colored(state.text, *state.color) : state.text;
}

}  // namespace telens::cli
