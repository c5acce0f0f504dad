// Which run is meant by a log_dir: every start of a training makes a run of its own there.
#pragma once

#include <string>
#include <vector>

#include "features/record/run_reader.h"

namespace telens::cli {

// A run among others.
struct RunEntry {
  std::string folder;
  double start_time = 0;                  // of its last start, in seconds since 1970
  std::optional<record::Segment> latest;  // of the lowest rank; nothing if it cannot be read
  std::string problem;                    // then: why
};

// The runs of a log_dir (or of its telens folder) that holds several, newest first; none for any
// other path.
std::vector<RunEntry> runs_beside(const std::string& path);

// The newest of several runs, which is told on stderr; any other path as it is.
std::string choose_run(const std::string& path);

}  // namespace telens::cli
