// All that a run holds, as a reader gets it: to tell a damaged file that reads as something else
// from one that reads as before.
#pragma once

#include <string>

namespace telens::testing {

// Prints the run's content, a line a row; returns 0, or 2 for what cannot be read, whose reason
// goes to stderr.
int print_content(const std::string& path);

}  // namespace telens::testing
