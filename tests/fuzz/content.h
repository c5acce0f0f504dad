// All that a run holds, as a reader gets it: to tell a damaged file that reads as something else
// from one that reads as before.
#pragma once

#include <cstdio>
#include <string>

#include "record/run_reader.h"

namespace telens::testing {

// The content of a run's first file, a line a row.
void print_content(const record::RunReader& run, std::FILE* out);
// A line with the version that wrote that file, and how it ended. A repair changes both.
void print_end(const record::RunReader& run, std::FILE* out);

// Prints a run's content to stdout and its end to stderr; returns 0, or 2 for what cannot be read,
// whose reason goes to stderr.
int print_content(const std::string& path);

}  // namespace telens::testing
