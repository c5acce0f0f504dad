// How a file of a run stands, in words.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "inspector_cli/terminal/terminal.h"
#include "record/run_reader.h"

namespace telens::cli {

// Seconds since 1970 as "2026-01-31 23:59:59 UTC".
std::string time_text(double seconds);

struct RunState {
  std::string text;  // "being written", "ended cleanly 2026-01-31 23:59:59 UTC"
  std::optional<Color> color = std::nullopt;
};
RunState get_state(const record::Segment& segment);
// That of a file that is being written, else of the last one.
RunState get_state(const record::RunReader& run);
// The same, in color on a terminal.
std::string state_text(const record::Segment& segment);

// "; 5 rows are lost; 2 rows were dropped"; "" for none.
std::string missing_rows(const record::Segment& segment);

// Sentences without a period about each rank's recording that did not go on to a clean end (a disk
// that was full, an exception, a kill, rows that are missing), in the order of rank_ends.h; about
// ranks that had no session or no file, or another configuration; about ranks that were compared no
// more; and about iterations that a budget left out. None of the first kind of a run that is being
// written.
std::vector<std::string> recording_notes(const record::RunReader& run);

}  // namespace telens::cli
