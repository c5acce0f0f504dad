// Opens and reads a run with messages and progress on stderr.
#pragma once

#include <string>

#include "analysis/series.h"
#include "record/run_reader.h"

namespace telens::cli {

using record::list_runs;
using record::RunEntry;

// Returns the newest run if `path` is a log_dir with several runs, and reports the choice on
// stderr. Returns any other path unchanged.
std::string choose_run(const std::string& path);

// Opens choose_run(path). If the run has several files, a damaged one is skipped with a warning on
// stderr.
record::RunReader open_run(const std::string& path);

// Like analysis::for_each_record, with progress on the terminal.
void for_each_record(const record::RunReader& run, const record::RecordQuery& query,
                     const analysis::UseRecord& use);

}  // namespace telens::cli
