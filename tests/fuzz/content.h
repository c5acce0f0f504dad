// Everything that a reader returns for a run, to detect damaged files that are read with other
// values.
#pragma once

#include <cstdio>
#include <string>

#include "record/run_reader.h"

namespace telens::testing {

// Prints the content of a run's first file, one line for each row.
void print_content(const record::RunReader& run, std::FILE* out);
// Prints a line with the version that wrote the file and how the file ended. A repair changes both.
void print_end(const record::RunReader& run, std::FILE* out);

// Prints a run's content to stdout and its end to stderr. Returns 0, or 2 if the run cannot be
// read, with the reason on stderr.
int print_content(const std::string& path);

}  // namespace telens::testing
