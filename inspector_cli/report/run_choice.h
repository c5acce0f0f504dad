// Chooses a run from a log_dir that holds several.
#pragma once

#include <string>

#include "record/runs_beside.h"

namespace telens::cli {

using record::RunEntry;
using record::runs_beside;

// The newest of several runs, which is told on stderr; any other path as it is.
std::string choose_run(const std::string& path);

}  // namespace telens::cli
