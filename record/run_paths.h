// Paths and names: <log_dir>/telens/<run id>/rank00000.h5, further segments rank00000.s001.h5, ...,
// and temporary files.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"

namespace telens::record {

std::string run_folder(const std::string& log_dir, std::string_view run_id);
std::string segment_name(int rank, int segment);

// Throws UsageError if `requested`, or TELENS_RUN_ID if that is "", is not a folder name that is
// safe on every file system. Accepts "" for both.
void check_run_id(std::string_view requested);

struct SegmentFile {
  std::string path;
  int rank = 0;
  int segment = 0;
};

// Returns rank and segment of a file name, or nullopt if it is not a segment.
std::optional<SegmentFile> parse_segment(const std::string& path);

// Returns the segments in a run's folder, by rank and segment. Throws RecordError with the cause if
// the folder exists but cannot be read. Returns none for a missing folder or a file.
std::vector<SegmentFile> segments_in(const std::string& folder);

// Returns the folders of the runs in a log_dir or its telens folder, by name. Returns none for the
// folder of a run or a file. A folder in `telens` that cannot be read counts as a run. Throws
// RecordError like segments_in().
std::vector<std::string> run_folders(const std::string& path);

// Returns `requested`, else TELENS_RUN_ID, else a new time stamp.
TELENS_EXPORT std::string decide_run_id(const std::string& log_dir, const std::string& requested);

// Temporary files, which a killed process does not remove.

// ".dump.<pid>.<number>.tmp"
inline constexpr std::string_view kDumpPrefix = ".dump.";
inline constexpr std::string_view kTemporarySuffix = ".tmp";
// ".<run file>.repair.<pid>.tmp"
inline constexpr std::string_view kRepairInfix = ".repair.";

// Removes the temporary files of a rank in a run's folder. Requires the rank's claim.
void remove_leftovers(const std::string& folder, int rank);

// Removes temporary tensor dumps of a rank, which the runs in one log_dir share, if their process
// is not on this machine and they are too old to be written by another machine.
void remove_leftover_dumps(const std::string& log_dir, int rank);

}  // namespace telens::record
