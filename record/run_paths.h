// Where run files lie: <log_dir>/telens/<run id>/rank00000.h5, its segments rank00000.s001.h5, ...
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"

namespace telens::record {

std::string run_folder(const std::string& log_dir, std::string_view run_id);
std::string segment_name(int rank, int segment);

// Throws UsageError where `requested`, or TELENS_RUN_ID if that is "", is no name of a folder that
// is safe on every file system. "" of both is one.
void check_run_id(std::string_view requested);

struct SegmentFile {
  std::string path;
  int rank = 0;
  int segment = 0;
};

// Rank and segment of a file name; nothing for a file that is not a segment.
std::optional<SegmentFile> parse_segment(const std::string& path);

// The segments in a run's folder, by rank and then in order. Throws RecordError, with the cause,
// for a folder that is there and cannot be read; one that is not there, or a file, has none.
std::vector<SegmentFile> segments_in(const std::string& folder);

// The folders of the runs that a log_dir, or its telens folder, holds, by their names; none for the
// folder of a run, or a file. A folder in `telens` that cannot be read counts as a run. Throws
// RecordError as segments_in() does.
std::vector<std::string> run_folders(const std::string& path);

// The run id that is asked for: `requested`, else TELENS_RUN_ID, else a new time stamp.
TELENS_EXPORT std::string decide_run_id(const std::string& log_dir, const std::string& requested);

// Removes what killed processes leave behind: files under temporary names.

// ".dump.<pid>.<number>.tmp"
inline constexpr std::string_view kDumpPrefix = ".dump.";
inline constexpr std::string_view kTemporarySuffix = ".tmp";
// ".<run file>.repair.<pid>.tmp"
inline constexpr std::string_view kRepairInfix = ".repair.";

// Those of a rank in a run's folder. For the process that has the rank's claim.
void remove_leftovers(const std::string& folder, int rank);

// Those of a rank's tensor dumps, which runs in one log_dir share: those of processes that this
// machine does not have, and that another one would have finished by now.
void remove_leftover_dumps(const std::string& log_dir, int rank);

}  // namespace telens::record
