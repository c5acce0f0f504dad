#include "analysis/rank_coverage.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>

#include "core/base/error.h"
#include "core/base/text.h"
#include "record/rows/tables.h"
#include "record/run_paths.h"

namespace telens::analysis {
namespace {

using record::Event;

// The ranks of the run in its folder, those too whose files were not asked for or cannot be read.
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
  // A damaged file may speak of any number, and a sentence of ranks names eight.
  constexpr int kMostRanks = 1 << 20;
  const std::set<int> ranks = list_ranks(run);
  std::vector<int> absent;
  for (int rank = 0; rank < std::min(get_world_size(run), kMostRanks); ++rank) {
    if (!ranks.contains(rank)) absent.push_back(rank);
  }
  return absent;
}

struct Warning {
  Event event;                             // the first; other ranks say it too
  std::optional<std::int64_t> until = {};  // a resume at which no rank has warned of it again
};

// The iteration at which a later process went on with the run.
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

// A warning of ranks whose text has the words.
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
