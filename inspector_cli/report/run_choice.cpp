#include "inspector_cli/report/run_choice.h"

#include <fmt/format.h>

#include "inspector_cli/terminal/terminal.h"

namespace telens::cli {

std::string choose_run(const std::string& path) {
  const auto runs = runs_beside(path);
  if (runs.empty()) return path;
  note(
      fmt::format("using the newest of {} runs in {}: {}. To choose another, pass its folder, such "
                  "as {}; `telens info {}` lists them",
                  runs.size(), path, runs[0].id(), runs[1].folder, path));
  return runs.front().folder;
}

}  // namespace telens::cli
