// The state of a run's recording as text: how it ended, and which ranks are missing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/rank_ends.h"
#include "record/run_reader.h"

namespace telens::analysis {

// Returns seconds since 1970 as "2026-01-31 23:59:59 UTC".
std::string time_text(double seconds);

enum class Condition : std::uint8_t {
  ended,    // cleanly
  live,     // being written
  warning,  // not closed, or killed and repaired
  failed,   // an exception, or the recording stopped
};

struct RunState {
  std::string text;  // "being written", "ended cleanly 2026-01-31 23:59:59 UTC"
  Condition condition = Condition::ended;
};
RunState get_state(const record::Segment& segment);
// Returns the state of the first file that is being written, else of the last file.
RunState get_state(const record::RunReader& run);

// Returns "; 5 rows are lost; 2 rows were dropped", or "" if no row is missing.
std::string missing_rows(const record::Segment& segment);

// Returns sentences without a period about
// - each rank whose recording did not end cleanly (full disk, exception, kill, missing rows), in
//   the order of list_rank_ends(); none if the run is being written;
// - ranks without a session or a file, or with another configuration;
// - ranks that could no longer be compared;
// - iterations that a budget skipped.
std::vector<std::string> recording_notes(const record::RunReader& run);

// Returns a sentence without a period for each end, with its likely cause if another rank's end
// caused it: "the recording of rank 0: ended by an exception ...".
std::vector<std::string> describe(const std::vector<RankEnd>& ends, const record::RunReader& run);

// Returns one line: "The run ended with an exception in iteration 12, 2026-01-31 23:59:59 UTC:
// ValueError: ...".
std::string describe(const RunEnding& ending);

// Returns sentences without a period about ranks that had no session, have no file or ran with
// another configuration. Each names the ranks, the iteration since when, and what to do.
std::vector<std::string> missing_rank_notes(const record::RunReader& run);

// Returns a clause that says why features could not compare ranks, or "" if they could.
std::string why_not_compared(const record::RunReader& run);

}  // namespace telens::analysis
