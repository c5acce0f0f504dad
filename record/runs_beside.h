// The runs of one log_dir: every start of a training makes a run of its own there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "record/run_reader.h"

namespace telens::record {

// A run among others.
struct RunEntry {
  std::string folder;
  double start_time = 0;          // its last start, in seconds since 1970
  std::optional<Segment> latest;  // the lowest rank's; nothing if it cannot be read
  std::string problem;            // then: why

  // The last part of its folder's path.
  std::string id() const;
};

// The runs of a log_dir (or of its telens folder) that holds several, newest first; none for any
// other path. The newest is the one that was started or resumed last, not the last by name.
TELENS_EXPORT std::vector<RunEntry> runs_beside(const std::string& path);

}  // namespace telens::record
