#include "inspector_cli/report/open_run.h"

#include <fmt/format.h>

#include <functional>

#include "inspector_cli/terminal/terminal.h"

namespace telens::cli {

std::string choose_run(const std::string& path) {
  const auto runs = list_runs(path);
  if (runs.empty()) return path;
  note(
      fmt::format("using the newest of {} runs in {}: {}. To choose another, pass its folder, such "
                  "as {}; `telens info {}` lists them",
                  runs.size(), path, runs[0].id(), runs[1].folder, path));
  return runs.front().folder;
}

record::RunReader open_run(const std::string& path) {
  return record::RunReader(
      choose_run(path), [](const std::string& line) { note("warning: " + line); },
      record::FindDamage::where_read, record::Opening::in_processes);
}

void for_each_record(const record::RunReader& run, const record::RecordQuery& query,
                     const analysis::UseRecord& use) {
  Progress progress(run.record_count());
  analysis::for_each_record(run, query, use, std::ref(progress));
}

}  // namespace telens::cli
