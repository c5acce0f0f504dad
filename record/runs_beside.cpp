#include "record/runs_beside.h"

#include <algorithm>
#include <filesystem>

#include "core/base/error.h"
#include "record/file_status.h"
#include "record/run_paths.h"

namespace telens::record {
namespace {

// One file tells when a run began: a log_dir may hold many runs of many ranks.
RunEntry make_entry(const std::string& folder) {
  RunEntry entry{.folder = folder, .latest = {}, .problem = {}};
  std::string path = folder;
  try {
    const auto files = segments_in(folder);
    if (files.empty()) raise<RecordError>("{}: its files have gone", folder);
    auto last = files.begin();
    while (last + 1 != files.end() && (last + 1)->rank == files.front().rank) ++last;
    path = last->path;
    entry.latest = RunReader(path).segments().front();
    entry.start_time = entry.latest->start_time;
  } catch (const RecordError& error) {
    // As new as its file: to pass over it would show an older run as the newest.
    entry.start_time = time_of_change(path);
    entry.problem = error.what();
  }
  return entry;
}

}  // namespace

std::string RunEntry::id() const { return std::filesystem::path(folder).filename().string(); }

std::vector<RunEntry> runs_beside(const std::string& path) {
  std::vector<RunEntry> runs;
  const auto folders = run_folders(path);
  if (folders.size() < 2) return runs;
  for (const std::string& folder : folders) runs.push_back(make_entry(folder));
  // If two began in one second, the later name is the newer one: <time>-2 comes after <time>.
  std::ranges::stable_sort(runs, [](const RunEntry& a, const RunEntry& b) {
    return a.start_time != b.start_time ? a.start_time > b.start_time : a.folder > b.folder;
  });
  return runs;
}

}  // namespace telens::record
